"""Caffe's protobuf schema, the facts of BVLC caffe.proto 1.0, as message classes; and files of such messages.

First nets, solvers, stored arrays and records, then the settings of layer types, then the two older layer messages
(V1, V0). `MessageTable` explains the notation.
"""

from pathlib import Path

from samovar.core.errors import InputError
from samovar.core.files import read_file
from samovar.formats.message_table import Message, MessageClass, MessageTable

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"

_TABLE = """
enum Phase TRAIN=0 TEST=1
message BlobShape: 1 dim int64+
message BlobProto: 7 shape BlobShape; 5 data float+; 6 diff float+; 8 double_data double+; 9 double_diff double+
  1 num int32 = 0; 2 channels int32 = 0; 3 height int32 = 0; 4 width int32 = 0
message BlobProtoVector: 1 blobs BlobProto*
message Datum: 1 channels int32; 2 height int32; 3 width int32; 4 data bytes; 5 label int32; 6 float_data float*
  7 encoded bool = false
message FillerParameter: enum VarianceNorm FAN_IN=0 FAN_OUT=1 AVERAGE=2; 1 type string = constant; 2 value float = 0
  3 min float = 0; 4 max float = 1; 5 mean float = 0; 6 std float = 1; 7 sparse int32 = -1
  8 variance_norm VarianceNorm = FAN_IN
message NetParameter: 1 name string; 3 input string*; 8 input_shape BlobShape*; 4 input_dim int32*
  5 force_backward bool = false; 6 state NetState; 7 debug_info bool = false; 100 layer LayerParameter*
  2 layers V1LayerParameter*
message SolverParameter: enum SnapshotFormat HDF5=0 BINARYPROTO=1; enum SolverMode CPU=0 GPU=1
  enum SolverType SGD=0 NESTEROV=1 ADAGRAD=2 RMSPROP=3 ADADELTA=4 ADAM=5; 24 net string; 25 net_param NetParameter
  1 train_net string; 2 test_net string*; 21 train_net_param NetParameter; 22 test_net_param NetParameter*
  26 train_state NetState; 27 test_state NetState*; 3 test_iter int32*; 4 test_interval int32 = 0
  19 test_compute_loss bool = false; 32 test_initialization bool = true; 5 base_lr float; 6 display int32
  33 average_loss int32 = 1; 7 max_iter int32; 36 iter_size int32 = 1; 8 lr_policy string; 9 gamma float
  10 power float; 11 momentum float; 12 weight_decay float; 29 regularization_type string = L2; 13 stepsize int32
  34 stepvalue int32*; 35 clip_gradients float = -1; 14 snapshot int32 = 0; 15 snapshot_prefix string
  16 snapshot_diff bool = false; 37 snapshot_format SnapshotFormat = BINARYPROTO; 17 solver_mode SolverMode = GPU
  18 device_id int32 = 0; 20 random_seed int64 = -1; 40 type string = SGD; 31 delta float = 1e-8
  39 momentum2 float = 0.999; 38 rms_decay float = 0.99; 23 debug_info bool = false
  28 snapshot_after_train bool = true; 30 solver_type SolverType = SGD; 41 layer_wise_reduce bool = true
  42 weights string*
message SolverState: 1 iter int32; 2 learned_net string; 3 history BlobProto*; 4 current_step int32 = 0
message NetState: 1 phase Phase = TEST; 2 level int32 = 0; 3 stage string*
message NetStateRule: 1 phase Phase; 2 min_level int32; 3 max_level int32; 4 stage string*; 5 not_stage string*
message ParamSpec: enum DimCheckMode STRICT=0 PERMISSIVE=1; 1 name string; 2 share_mode DimCheckMode
  3 lr_mult float = 1; 4 decay_mult float = 1
message LayerParameter: 1 name string; 2 type string; 3 bottom string*; 4 top string*; 10 phase Phase
  5 loss_weight float*; 6 param ParamSpec*; 7 blobs BlobProto*; 11 propagate_down bool*; 8 include NetStateRule*
  9 exclude NetStateRule*; 100 transform_param TransformationParameter; 101 loss_param LossParameter
  102 accuracy_param AccuracyParameter; 103 argmax_param ArgMaxParameter; 139 batch_norm_param BatchNormParameter
  141 bias_param BiasParameter; 148 clip_param ClipParameter; 104 concat_param ConcatParameter
  105 contrastive_loss_param ContrastiveLossParameter; 106 convolution_param ConvolutionParameter
  144 crop_param CropParameter; 107 data_param DataParameter; 108 dropout_param DropoutParameter
  109 dummy_data_param DummyDataParameter; 110 eltwise_param EltwiseParameter; 140 elu_param ELUParameter
  137 embed_param EmbedParameter; 111 exp_param ExpParameter; 135 flatten_param FlattenParameter
  112 hdf5_data_param HDF5DataParameter; 113 hdf5_output_param HDF5OutputParameter
  114 hinge_loss_param HingeLossParameter; 115 image_data_param ImageDataParameter
  116 infogain_loss_param InfogainLossParameter; 117 inner_product_param InnerProductParameter
  143 input_param InputParameter; 134 log_param LogParameter; 118 lrn_param LRNParameter
  119 memory_data_param MemoryDataParameter; 120 mvn_param MVNParameter; 145 parameter_param ParameterParameter
  121 pooling_param PoolingParameter; 122 power_param PowerParameter; 131 prelu_param PReLUParameter
  130 python_param PythonParameter; 146 recurrent_param RecurrentParameter; 136 reduction_param ReductionParameter
  123 relu_param ReLUParameter; 133 reshape_param ReshapeParameter; 142 scale_param ScaleParameter
  124 sigmoid_param SigmoidParameter; 125 softmax_param SoftmaxParameter; 132 spp_param SPPParameter
  126 slice_param SliceParameter; 147 swish_param SwishParameter; 127 tanh_param TanHParameter
  128 threshold_param ThresholdParameter; 138 tile_param TileParameter; 129 window_data_param WindowDataParameter
message TransformationParameter: 1 scale float = 1; 2 mirror bool = false; 3 crop_size uint32 = 0; 4 mean_file string
  5 mean_value float*; 6 force_color bool = false; 7 force_gray bool = false
message LossParameter: enum NormalizationMode FULL=0 VALID=1 BATCH_SIZE=2 NONE=3; 1 ignore_label int32
  3 normalization NormalizationMode = VALID; 2 normalize bool
message AccuracyParameter: 1 top_k uint32 = 1; 2 axis int32 = 1; 3 ignore_label int32
message ArgMaxParameter: 1 out_max_val bool = false; 2 top_k uint32 = 1; 3 axis int32
message ClipParameter: 1 min float!; 2 max float!
message ConcatParameter: 2 axis int32 = 1; 1 concat_dim uint32 = 1
message BatchNormParameter: 1 use_global_stats bool; 2 moving_average_fraction float = 0.999; 3 eps float = 1e-5
message BiasParameter: 1 axis int32 = 1; 2 num_axes int32 = 1; 3 filler FillerParameter
message ContrastiveLossParameter: 1 margin float = 1; 2 legacy_version bool = false
message ConvolutionParameter: enum Engine DEFAULT=0 CAFFE=1 CUDNN=2; 1 num_output uint32; 2 bias_term bool = true
  3 pad uint32*; 4 kernel_size uint32*; 6 stride uint32*; 18 dilation uint32*; 9 pad_h uint32 = 0; 10 pad_w uint32 = 0
  11 kernel_h uint32; 12 kernel_w uint32; 13 stride_h uint32; 14 stride_w uint32; 5 group uint32 = 1
  7 weight_filler FillerParameter; 8 bias_filler FillerParameter; 15 engine Engine = DEFAULT; 16 axis int32 = 1
  17 force_nd_im2col bool = false
message CropParameter: 1 axis int32 = 2; 2 offset uint32*
message DataParameter: enum DB LEVELDB=0 LMDB=1; 1 source string; 4 batch_size uint32; 7 rand_skip uint32 = 0
  8 backend DB = LEVELDB; 2 scale float = 1; 3 mean_file string; 5 crop_size uint32 = 0; 6 mirror bool = false
  9 force_encoded_color bool = false; 10 prefetch uint32 = 4
message DropoutParameter: 1 dropout_ratio float = 0.5
message DummyDataParameter: 1 data_filler FillerParameter*; 6 shape BlobShape*; 2 num uint32*; 3 channels uint32*
  4 height uint32*; 5 width uint32*
message EltwiseParameter: enum EltwiseOp PROD=0 SUM=1 MAX=2; 1 operation EltwiseOp = SUM; 2 coeff float*
  3 stable_prod_grad bool = true
message ELUParameter: 1 alpha float = 1
message EmbedParameter: 1 num_output uint32; 2 input_dim uint32; 3 bias_term bool = true
  4 weight_filler FillerParameter; 5 bias_filler FillerParameter
message ExpParameter: 1 base float = -1; 2 scale float = 1; 3 shift float = 0
message FlattenParameter: 1 axis int32 = 1; 2 end_axis int32 = -1
message HDF5DataParameter: 1 source string; 2 batch_size uint32; 3 shuffle bool = false
message HDF5OutputParameter: 1 file_name string
message HingeLossParameter: enum Norm L1=1 L2=2; 1 norm Norm = L1
message ImageDataParameter: 1 source string; 4 batch_size uint32 = 1; 7 rand_skip uint32 = 0; 8 shuffle bool = false
  9 new_height uint32 = 0; 10 new_width uint32 = 0; 11 is_color bool = true; 2 scale float = 1; 3 mean_file string
  5 crop_size uint32 = 0; 6 mirror bool = false; 12 root_folder string
message InfogainLossParameter: 1 source string; 2 axis int32 = 1
message InnerProductParameter: 1 num_output uint32; 2 bias_term bool = true; 3 weight_filler FillerParameter
  4 bias_filler FillerParameter; 5 axis int32 = 1; 6 transpose bool = false
message InputParameter: 1 shape BlobShape*
message LogParameter: 1 base float = -1; 2 scale float = 1; 3 shift float = 0
message LRNParameter: enum NormRegion ACROSS_CHANNELS=0 WITHIN_CHANNEL=1; enum Engine DEFAULT=0 CAFFE=1 CUDNN=2
  1 local_size uint32 = 5; 2 alpha float = 1; 3 beta float = 0.75; 4 norm_region NormRegion = ACROSS_CHANNELS
  5 k float = 1; 6 engine Engine = DEFAULT
message MemoryDataParameter: 1 batch_size uint32; 2 channels uint32; 3 height uint32; 4 width uint32
message MVNParameter: 1 normalize_variance bool = true; 2 across_channels bool = false; 3 eps float = 1e-9
message ParameterParameter: 1 shape BlobShape
message PoolingParameter: enum PoolMethod MAX=0 AVE=1 STOCHASTIC=2; enum Engine DEFAULT=0 CAFFE=1 CUDNN=2
  enum RoundMode CEIL=0 FLOOR=1; 1 pool PoolMethod = MAX; 4 pad uint32 = 0; 9 pad_h uint32 = 0; 10 pad_w uint32 = 0
  2 kernel_size uint32; 5 kernel_h uint32; 6 kernel_w uint32; 3 stride uint32 = 1; 7 stride_h uint32
  8 stride_w uint32; 11 engine Engine = DEFAULT; 12 global_pooling bool = false; 13 round_mode RoundMode = CEIL
message PowerParameter: 1 power float = 1; 2 scale float = 1; 3 shift float = 0
message PythonParameter: 1 module string; 2 layer string; 3 param_str string; 4 share_in_parallel bool = false
message RecurrentParameter: 1 num_output uint32 = 0; 2 weight_filler FillerParameter; 3 bias_filler FillerParameter
  4 debug_info bool = false; 5 expose_hidden bool = false
message ReductionParameter: enum ReductionOp SUM=1 ASUM=2 SUMSQ=3 MEAN=4; 1 operation ReductionOp = SUM
  2 axis int32 = 0; 3 coeff float = 1
message ReLUParameter: enum Engine DEFAULT=0 CAFFE=1 CUDNN=2; 1 negative_slope float = 0; 2 engine Engine = DEFAULT
message ReshapeParameter: 1 shape BlobShape; 2 axis int32 = 0; 3 num_axes int32 = -1
message ScaleParameter: 1 axis int32 = 1; 2 num_axes int32 = 1; 3 filler FillerParameter; 4 bias_term bool = false
  5 bias_filler FillerParameter
message SigmoidParameter: enum Engine DEFAULT=0 CAFFE=1 CUDNN=2; 1 engine Engine = DEFAULT
message SliceParameter: 3 axis int32 = 1; 2 slice_point uint32*; 1 slice_dim uint32 = 1
message SoftmaxParameter: enum Engine DEFAULT=0 CAFFE=1 CUDNN=2; 1 engine Engine = DEFAULT; 2 axis int32 = 1
message SwishParameter: 1 beta float = 1
message TanHParameter: enum Engine DEFAULT=0 CAFFE=1 CUDNN=2; 1 engine Engine = DEFAULT
message TileParameter: 1 axis int32 = 1; 2 tiles int32
message ThresholdParameter: 1 threshold float = 0
message WindowDataParameter: 1 source string; 2 scale float = 1; 3 mean_file string; 4 batch_size uint32
  5 crop_size uint32 = 0; 6 mirror bool = false; 7 fg_threshold float = 0.5; 8 bg_threshold float = 0.5
  9 fg_fraction float = 0.25; 10 context_pad uint32 = 0; 11 crop_mode string = warp; 12 cache_images bool = false
  13 root_folder string
message SPPParameter: enum PoolMethod MAX=0 AVE=1 STOCHASTIC=2; enum Engine DEFAULT=0 CAFFE=1 CUDNN=2
  1 pyramid_height uint32; 2 pool PoolMethod = MAX; 6 engine Engine = DEFAULT
message PReLUParameter: 1 filler FillerParameter; 2 channel_shared bool = false
message V1LayerParameter: enum LayerType NONE=0 ABSVAL=35 ACCURACY=1 ARGMAX=30 BNLL=2 CONCAT=3 CONTRASTIVE_LOSS=37 \
    CONVOLUTION=4 DATA=5 DECONVOLUTION=39 DROPOUT=6 DUMMY_DATA=32 EUCLIDEAN_LOSS=7 ELTWISE=25 EXP=38 FLATTEN=8 \
    HDF5_DATA=9 HDF5_OUTPUT=10 HINGE_LOSS=28 IM2COL=11 IMAGE_DATA=12 INFOGAIN_LOSS=13 INNER_PRODUCT=14 LRN=15 \
    MEMORY_DATA=29 MULTINOMIAL_LOGISTIC_LOSS=16 MVN=34 POOLING=17 POWER=26 RELU=18 SIGMOID=19 \
    SIGMOID_CROSS_ENTROPY_LOSS=27 SILENCE=36 SOFTMAX=20 SOFTMAX_LOSS=21 SPLIT=22 SLICE=33 TANH=23 WINDOW_DATA=24 \
    THRESHOLD=31
  enum DimCheckMode STRICT=0 PERMISSIVE=1; 2 bottom string*; 3 top string*; 4 name string; 32 include NetStateRule*
  33 exclude NetStateRule*; 5 type LayerType; 6 blobs BlobProto*; 1001 param string*
  1002 blob_share_mode DimCheckMode*; 7 blobs_lr float*; 8 weight_decay float*; 35 loss_weight float*
  27 accuracy_param AccuracyParameter; 23 argmax_param ArgMaxParameter; 9 concat_param ConcatParameter
  40 contrastive_loss_param ContrastiveLossParameter; 10 convolution_param ConvolutionParameter
  11 data_param DataParameter; 12 dropout_param DropoutParameter; 26 dummy_data_param DummyDataParameter
  24 eltwise_param EltwiseParameter; 41 exp_param ExpParameter; 13 hdf5_data_param HDF5DataParameter
  14 hdf5_output_param HDF5OutputParameter; 29 hinge_loss_param HingeLossParameter
  15 image_data_param ImageDataParameter; 16 infogain_loss_param InfogainLossParameter
  17 inner_product_param InnerProductParameter; 18 lrn_param LRNParameter; 22 memory_data_param MemoryDataParameter
  34 mvn_param MVNParameter; 19 pooling_param PoolingParameter; 21 power_param PowerParameter
  30 relu_param ReLUParameter; 38 sigmoid_param SigmoidParameter; 39 softmax_param SoftmaxParameter
  31 slice_param SliceParameter; 37 tanh_param TanHParameter; 25 threshold_param ThresholdParameter
  20 window_data_param WindowDataParameter; 36 transform_param TransformationParameter; 42 loss_param LossParameter
  1 layer V0LayerParameter
message V0LayerParameter: enum PoolMethod MAX=0 AVE=1 STOCHASTIC=2; 1 name string; 2 type string; 3 num_output uint32
  4 biasterm bool = true; 5 weight_filler FillerParameter; 6 bias_filler FillerParameter; 7 pad uint32 = 0
  8 kernelsize uint32; 9 group uint32 = 1; 10 stride uint32 = 1; 11 pool PoolMethod = MAX
  12 dropout_ratio float = 0.5; 13 local_size uint32 = 5; 14 alpha float = 1; 15 beta float = 0.75; 22 k float = 1
  16 source string; 17 scale float = 1; 18 meanfile string; 19 batchsize uint32; 20 cropsize uint32 = 0
  21 mirror bool = false; 50 blobs BlobProto*; 51 blobs_lr float*; 52 weight_decay float*; 53 rand_skip uint32 = 0
  54 det_fg_threshold float = 0.5; 55 det_bg_threshold float = 0.5; 56 det_fg_fraction float = 0.25
  58 det_context_pad uint32 = 0; 59 det_crop_mode string = warp; 60 new_num int32 = 0; 61 new_channels int32 = 0
  62 new_height int32 = 0; 63 new_width int32 = 0; 64 shuffle_images bool = false; 65 concat_dim uint32 = 1
  1001 hdf5_output_param HDF5OutputParameter
"""

__all__ = ["PACKAGE", "Message", "MessageClass", "message_class", "packed_message_class"]

PACKAGE = "caffe"


def message_class(name: str) -> MessageClass:
    """The class of Caffe's message `name` ("NetParameter"); KeyError for a name that Caffe does not have."""
    return _MESSAGES.message_class(name)


def packed_message_class(name: str) -> MessageClass:
    """As `message_class`, but packed float and double fields are lists of raw little-endian byte runs.
    On the wire both are the same. Arrays then need no Python object for each number."""
    return _PACKED_MESSAGES.message_class(name)


_MESSAGES = MessageTable(PACKAGE, _TABLE)
_PACKED_MESSAGES = MessageTable(PACKAGE, _TABLE, packed_as_bytes=True)


def read_binary(path: Path, kind: str, max_bytes: int) -> bytes:
    """As `read_file`, for a binary protobuf; the error says so if it is an HDF5 file."""
    content = read_file(path, kind, max_bytes)
    if content.startswith(HDF5_MAGIC):
        raise InputError(
            f"{path}: is an HDF5 file, but a {kind} is a binary protobuf; give the file that Caffe's tools wrote"
        )
    return content


def utf8(value: str | bytes, where: str) -> str:
    """A text from one of Caffe's messages, which holds bytes instead if they are not UTF-8.
    Raises InputError, starting with `where`, for bytes."""
    if isinstance(value, bytes):
        raise InputError(f"{where}: {value[:60]!r} is not UTF-8 text; the file is damaged")
    return value
