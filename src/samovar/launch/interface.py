"""By which address and network interface this host reaches another one, in words."""

from samovar.transports.interfaces import addresses_towards, interface_of


def describe_route(address: str, port: int, is_own: bool) -> str:
    """Words for where the ranks meet and how this host gets there; nothing is sent.

    `is_own`: the address should be one of this host's own.
    """
    meeting = f"they meet at {address} port {port}"
    try:
        own, target = addresses_towards(address)
    except (OSError, UnicodeError) as error:  # a name may also be none at all
        return f"{meeting}, which cannot be reached from here now: {error}"
    if is_own and own != target:
        return f"{meeting}, which is not this host's own address (that towards it is {own})"
    name = interface_of(own)
    return f"{meeting}, reached from {own}" + (f" (interface {name})" if name else "")
