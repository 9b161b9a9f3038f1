-- SPDX-License-Identifier: MIT
--- How many inputs the operators of ONNX take, over all versions (onnx.ai/onnx/operators): least - most, * for any
-- number; behind a colon how many in front may not be left out, where that is fewer.
-- @module perilune.onnx.operators.arity
local text = ""
  .. "Abs=1 Acos=1 Acosh=1 Add=2 AffineGrid=2 And=2 ArgMax=1 ArgMin=1 Asin=1 Asinh=1 Atan=1 Atanh=1 Attention=3-7 "
  .. "AveragePool=1 BatchNormalization=5 Bernoulli=1 BitCast=1 BitShift=2 BitwiseAnd=2 BitwiseNot=1 BitwiseOr=2 "
  .. "BitwiseXor=2 BlackmanWindow=1 Cast=1 CastLike=2 CausalConvWithState=2-4 Ceil=1 Celu=1 CenterCropPad=2 "
  .. "Clip=1-3 Col2Im=3 Compress=2 Concat=1:0-* ConcatFromSequence=1 Constant=0 ConstantOfShape=1 Conv=2-3 "
  .. "ConvInteger=2-4 ConvTranspose=2-3 Cos=1 Cosh=1 CumProd=2 CumSum=2 DFT=1-3 DeformConv=3-5 DepthToSpace=1 "
  .. "DequantizeLinear=2-3 Det=1 Div=2 Dropout=1-3 DynamicQuantizeLinear=1 Einsum=1:0-* Elu=1 Equal=2 Erf=1 Exp=1 "
  .. "Expand=2 EyeLike=1 Flatten=1 Floor=1 GRU=3-6 Gather=2 GatherElements=2 GatherND=2 Gelu=1 Gemm=2-3 "
  .. "GlobalAveragePool=1 GlobalLpPool=1 GlobalMaxPool=1 Greater=2 GreaterOrEqual=2 GridSample=2 "
  .. "GroupNormalization=3 HammingWindow=1 HannWindow=1 HardSigmoid=1 HardSwish=1 Hardmax=1 Identity=1 If=1 "
  .. "ImageDecoder=1 InstanceNormalization=3 IsInf=1 IsNaN=1 LRN=1 LSTM=3-8 LayerNormalization=2-3 LeakyRelu=1 "
  .. "Less=2 LessOrEqual=2 LinearAttention=3-6 Log=1 LogSoftmax=1 Loop=2:0-* LpNormalization=1 LpPool=1 MatMul=2 "
  .. "MatMulInteger=2-4 Max=1:0-* MaxPool=1 MaxRoiPool=2 MaxUnpool=2-3 Mean=1:0-* MeanVarianceNormalization=1 "
  .. "MelWeightMatrix=5 Min=1:0-* Mish=1 Mod=2 Mul=2 Multinomial=1 Neg=1 NegativeLogLikelihoodLoss=2-3 "
  .. "NonMaxSuppression=2-5 NonZero=1 Not=1 OneHot=3 Optional=0-1 OptionalGetElement=1 OptionalHasElement=0-1 Or=2 "
  .. "PRelu=2 Pad=1-4 Pow=2 QLinearConv=8-9 QLinearMatMul=8 QuantizeLinear=2-3 RMSNormalization=2 RNN=3-6 "
  .. "RandomNormal=0 RandomNormalLike=1 RandomUniform=0 RandomUniformLike=1 Range=3 Reciprocal=1 ReduceL1=1-2 "
  .. "ReduceL2=1-2 ReduceLogSum=1-2 ReduceLogSumExp=1-2 ReduceMax=1-2 ReduceMean=1-2 ReduceMin=1-2 ReduceProd=1-2 "
  .. "ReduceSum=1-2 ReduceSumSquare=1-2 RegexFullMatch=1 Relu=1 Reshape=1-2 Resize=1-4 ReverseSequence=2 "
  .. "RoiAlign=3 RotaryEmbedding=3-4 Round=1 STFT=2-4 Scan=1:0-* Scatter=3 ScatterElements=3 ScatterND=3 Selu=1 "
  .. "SequenceAt=2 SequenceConstruct=1:0-* SequenceEmpty=0 SequenceErase=1-2 SequenceInsert=2-3 SequenceLength=1 "
  .. "SequenceMap=1-* Shape=1 Shrink=1 Sigmoid=1 Sign=1 Sin=1 Sinh=1 Size=1 Slice=1-5 Softmax=1 "
  .. "SoftmaxCrossEntropyLoss=2-3 Softplus=1 Softsign=1 SpaceToDepth=1 Split=1-2 SplitToSequence=1-2 Sqrt=1 "
  .. "Squeeze=1-2 StringConcat=2 StringNormalizer=1 StringSplit=1 Sub=2 Sum=1:0-* SwiGLU=2 Swish=1 Tan=1 Tanh=1 "
  .. "TensorScatter=2-3 TfIdfVectorizer=1 ThresholdedRelu=1 Tile=2-3 TopK=1-2 Transpose=1 Trilu=1-2 Unique=1 "
  .. "Unsqueeze=1-2 Upsample=1-2 Where=3 Xor=2 "

local arity = {}
for name, least, required, most in text:gmatch "(%w+)=(%d+):?(%d*)%-?([%d*]*)" do
  least = tonumber(least)
  arity[name] = { least, most == "" and least or tonumber(most) or math.huge, tonumber(required) or least }
end
return arity
