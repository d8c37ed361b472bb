// A live page asks for itself again, and keeps what its reader has chosen and opened.
const again = async () => {
  try {
    const signal = AbortSignal.timeout(20000);  // a watch that was stopped, say, does not answer
    const answer = await fetch(location.href, { cache: "no-store", signal });
    if (!answer.ok) throw answer;  // a sentence about a file, which may be well again later
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const chosen = [...document.querySelectorAll("input:checked")].map((one) => one.id);
    const open = [...document.querySelectorAll("details[open] > summary")].map((one) => one.textContent);
    for (const one of fresh.querySelectorAll("input")) one.toggleAttribute("checked", chosen.includes(one.id));
    for (const one of fresh.querySelectorAll("summary")) one.parentNode.open = open.includes(one.textContent);
    document.querySelector("main").replaceWith(fresh.querySelector("main"));
    document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost");
  }
  setTimeout(again, 2000);
};
setTimeout(again, 2000);
