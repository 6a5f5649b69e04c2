package modelserver

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// vllm is vLLM's OpenAI-compatible server, vllm serve.
//
// It listens when the model is loaded, and queues requests without a limit. At SIGTERM it aborts requests,
// unless --shutdown-timeout gives them time.
var vllm = engine{
	name:        "vllm",
	program:     "vllm serve",
	usage:       "vllm serve [model_tag] [options]",
	images:      []string{"vllm/vllm-openai"},
	entrypoint:  []string{"vllm", "serve"},
	positionals: 1,
	flags:       vllmFlags,
	match: func(words []string) ([]string, bool) {
		if len(words) >= 2 && path.Base(words[0]) == "vllm" && words[1] == "serve" {
			return words[2:], true
		}
		return pythonModule(words, "vllm.entrypoints.openai.api_server")
	},
	rewrite:   rewriteVLLM,
	configure: configureVLLM,

	listensWhenLoaded: true,
	abrupt:            true,
	statusQueueFull:   http.StatusServiceUnavailable,
	ownedBy:           "vllm",
	guards: func(path string) bool {
		return strings.HasPrefix(path, "/v1") || strings.HasPrefix(path, "/v2") || strings.HasPrefix(path, "/inference")
	},
	errorBody: func(e *apiError) any {
		if detail := fastAPIDetail(e); detail != nil {
			return detail
		}
		body := openAIError(e)
		return map[string]any{"error": body}
	},
	routes:  vllmRoutes,
	metrics: newVLLMMetrics,
}

// vllmVersion is the version of vLLM that has these flags and metrics.
const vllmVersion = "0.20.0"

// vllmFlags are the flags that vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py register from the
// fields of vLLM's configurations, as of summer 2026. If a field accepts other texts than its listed words, the flag
// accepts them, too.
var vllmFlags = slices.Concat(
	// The command and the server that it starts.
	makeFlags(switched, "--headless", "--grpc", "--disable-log-stats", "--aggregate-engine-logging", "--data-parallel-multi-port-external-lb/-dpm"),
	makeFlags(optionalInteger, "--api-server-count/-asc", "--max-log-len"),
	makeFlags(integer, "--port", "--data-parallel-supervisor-port", "--dp-supervisor-probe-failure-threshold", "--ssl-cert-reqs",
		"--h11-max-incomplete-event-size", "--h11-max-header-count", "--shutdown-timeout"),
	makeFlags(decimal, "--dp-supervisor-probe-interval-s", "--dp-supervisor-probe-timeout-s"),
	makeFlags(text, "--config", "--host", "--uds", "--chat-template", "--response-role", "--tool-call-parser", "--tool-parser-plugin", "--tool-server",
		"--log-config-file", "--cohere-format", "--fingerprint-value", "--disable-access-log-for-endpoints", "--ssl-keyfile", "--ssl-certfile",
		"--ssl-ca-certs", "--ssl-ciphers", "--root-path", "--middleware"),
	makeFlags(jsonValue, "--default-chat-template-kwargs", "--allowed-origins", "--allowed-methods", "--allowed-headers"),
	listFlags(text, "--lora-modules", "--api-key"),
	oneOf("--chat-template-content-format", "auto", "openai", "string"),
	oneOf("--fingerprint-mode", "custom", "full", "hash", "none"),
	oneOf("--uvicorn-log-level", "critical", "debug", "error", "info", "trace", "warning"),
	makeFlags(boolean, "--trust-request-chat-template", "--return-tokens-as-token-ids", "--enable-auto-tool-choice",
		"--exclude-tools-when-tool-choice-none", "--enable-prompt-tokens-details", "--enable-per-request-metrics", "--enable-server-load-tracking",
		"--enable-force-include-usage", "--enable-tokenizer-info-endpoint", "--enable-log-outputs", "--enable-log-deltas",
		"--cohere-is-reasoning-model", "--log-error-stack", "--tokens-only", "--disable-uvicorn-access-log", "--allow-credentials",
		"--enable-ssl-refresh", "--enable-request-id-headers", "--disable-fastapi-docs", "--enable-offline-docs",
		"--enable-flash-late-interaction", "--enable-log-requests", "--fail-on-environ-validation"),

	// ModelConfig and LoadConfig.
	makeFlags(text, "--model", "--model-weights", "--tokenizer", "--tokenizer-mode", "--hf-config-path", "--allowed-local-media-path", "--revision",
		"--code-revision", "--tokenizer-revision", "--quantization/-q", "--config-format", "--hf-overrides", "--generation-config", "--model-impl",
		"--io-processor-plugin", "--load-format", "--download-dir", "--safetensors-load-strategy", "--pt-load-map-location"),
	[]flag{{names: "--hf-token", count: oneOrNone}},
	listFlags(text, "--served-model-name", "--allowed-media-domains", "--logits-processors", "--ignore-patterns"),
	makeFlags(integer, "--seed", "--max-logprobs", "--renderer-num-workers", "--safetensors-prefetch-num-threads", "--safetensors-prefetch-block-size"),
	makeFlags(humanIntegerOrAuto, "--max-model-len"),
	makeFlags(jsonValue, "--model-class-overrides", "--quantization-config", "--pooler-config", "--override-generation-config",
		"--model-loader-extra-config"),
	oneOf("--runner", "auto", "draft", "generate", "pooling"),
	oneOf("--dtype", "auto", "bfloat16", "float", "float16", "float32", "half"),
	oneOf("--logprobs-mode", "processed_logits", "processed_logprobs", "raw_logits", "raw_logprobs"),
	makeFlags(text, "--convert"),
	makeFlags(boolean, "--trust-remote-code", "--allow-deprecated-quantization", "--enforce-eager", "--enable-return-routed-experts",
		"--return-sampling-mask", "--use-fp64-gumbel", "--enable-trace-replay", "--disable-sliding-window", "--disable-cascade-attn",
		"--skip-tokenizer-init", "--enable-prompt-embeds", "--enable-sleep-mode", "--enable-cumem-allocator", "--enable-nccl-comm-suspend",
		"--use-tqdm-on-load"),

	// AttentionConfig, MambaConfig and StructuredOutputsConfig.
	makeFlags(text, "--attention-backend", "--mamba-backend", "--mamba-ssu-algorithm", "--reasoning-parser", "--reasoning-parser-plugin"),
	makeFlags(integer, "--mamba-cache-philox-rounds"),
	makeFlags(boolean, "--enable-mamba-cache-stochastic-rounding"),

	// ParallelConfig.
	makeFlags(integer, "--pipeline-parallel-size/-pp", "--master-port", "--nnodes/-n", "--node-rank/-r", "--tensor-parallel-size/-tp",
		"--decode-context-parallel-size/-dcp", "--dcp-kv-cache-interleave-size", "--cp-kv-cache-interleave-size",
		"--prefill-context-parallel-size/-pcp", "--data-parallel-size/-dp", "--data-parallel-rank/-dpn", "--data-parallel-start-rank/-dpr",
		"--data-parallel-size-local/-dpl", "--data-parallel-rpc-port/-dpp", "--ubatch-size", "--dbo-decode-token-threshold", "--dp-sync-interval",
		"--dbo-prefill-token-threshold"),
	makeFlags(optionalInteger, "--distributed-timeout-seconds", "--cpu-distributed-timeout-seconds", "--max-parallel-loading-workers"),
	makeFlags(text, "--distributed-executor-backend", "--master-addr", "--device-ids", "--dcp-comm-backend", "--data-parallel-address/-dpa",
		"--data-parallel-backend/-dpb", "--all2all-backend", "--worker-cls", "--worker-extension-cls"),
	listFlags(text, "--numa-bind-nodes", "--numa-bind-cpus"),
	oneOf("--expert-placement-strategy", "linear", "round_robin"),
	makeFlags(jsonValue, "--eplb-config", "--fault-tolerance-config"),
	makeFlags(boolean, "--numa-bind", "--dcp-q-replicate", "--data-parallel-hybrid-lb/-dph", "--data-parallel-external-lb/-dpe",
		"--enable-expert-parallel/-ep", "--enable-batch-sharded-sampling", "--enable-ep-weight-filter", "--enable-dbo", "--enable-elastic-ep",
		"--disable-nccl-for-dp-synchronization", "--enable-eplb", "--ray-workers-use-nsight", "--disable-custom-all-reduce",
		"--enable-fault-tolerance"),

	// CacheConfig and OffloadConfig.
	makeFlags(optionalInteger, "--block-size", "--num-gpu-blocks-override", "--prefix-cache-retention-interval", "--mamba-block-size",
		"--prefix-match-unit"),
	makeFlags(decimal, "--gpu-memory-utilization", "--cpu-offload-gb"),
	makeFlags(optionalDecimal, "--kv-offloading-size"),
	makeFlags(humanInteger, "--kv-cache-memory-bytes"),
	makeFlags(integer, "--replayssm-buffer-len", "--offload-group-size", "--offload-num-in-group", "--offload-prefetch-step"),
	makeFlags(text, "--kv-cache-dtype", "--prefix-caching-hash-algo", "--mamba-cache-dtype", "--mamba-ssm-cache-dtype", "--mamba-cache-mode",
		"--kv-offloading-backend", "--offload-backend"),
	listFlags(text, "--kv-cache-dtype-skip-layers", "--cpu-offload-params", "--offload-params"),
	makeFlags(boolean, "--enable-prefix-caching", "--kv-sharing-fast-prefill", "--use-replayssm"),

	// MultiModalConfig and LoRAConfig.
	makeFlags(jsonValue, "--limit-mm-per-prompt", "--media-io-kwargs", "--mm-processor-kwargs", "--default-mm-loras"),
	makeFlags(decimal, "--mm-processor-cache-gb", "--mm-encoder-fp8-scale-save-margin", "--mm-ipc-gpu-memory-gb"),
	makeFlags(optionalDecimal, "--video-pruning-rate"),
	makeFlags(integer, "--mm-shm-cache-max-object-size-mb", "--max-loras", "--max-lora-rank"),
	makeFlags(optionalInteger, "--max-cpu-loras"),
	makeFlags(text, "--mm-processor-cache-type", "--mm-hasher-algorithm", "--mm-encoder-attn-backend", "--mm-encoder-attn-dtype",
		"--mm-encoder-fp8-scale-path", "--mm-encoder-fp8-scale-save-path", "--video-pruning-method", "--mm-tensor-ipc", "--mm-processor-device",
		"--lora-dtype"),
	oneOf("--mm-encoder-tp-mode", "data", "weights"),
	listFlags(text, "--lora-target-modules"),
	makeFlags(boolean, "--language-model-only", "--enable-mm-embeds", "--mm-encoder-only", "--interleave-mm-strings", "--skip-mm-profiling",
		"--mm-device-do-normalize", "--enable-lora", "--enable-tower-connector-lora", "--fully-sharded-loras", "--specialize-active-lora",
		"--enable-mixed-moe-lora-format", "--enable-moe-shared-loras"),

	// ObservabilityConfig.
	makeFlags(text, "--show-hidden-metrics-for-version", "--otlp-traces-endpoint", "--jit-monitor-mode"),
	listFlags(text, "--collect-detailed-traces"),
	makeFlags(decimal, "--kv-cache-metrics-sample"),
	makeFlags(boolean, "--per-request-spec-decode-metrics", "--kv-cache-metrics", "--cudagraph-metrics", "--enable-layerwise-nvtx-tracing",
		"--enable-mfu-metrics", "--enable-logging-iteration-details", "--jit-monitor-verbose"),

	// SchedulerConfig, CompilationConfig and KernelConfig.
	makeFlags(humanInteger, "--max-num-batched-tokens"),
	makeFlags(optionalInteger, "--max-num-scheduled-tokens", "--max-num-queued-reqs", "--max-num-queued-tokens", "--max-cudagraph-capture-size"),
	makeFlags(integer, "--max-num-seqs", "--long-prefill-token-threshold", "--prefill-schedule-interval", "--stream-interval"),
	makeFlags(decimal, "--watermark"),
	makeFlags(text, "--scheduler-cls", "--moe-backend", "--linear-backend"),
	oneOf("--scheduling-policy", "fcfs", "priority"),
	listFlags(integer, "--cudagraph-capture-sizes"),
	makeFlags(jsonValue, "--ir-op-priority"),
	makeFlags(boolean, "--enable-chunked-prefill", "--disable-chunked-mm-input", "--scheduler-reserve-full-isl", "--disable-hybrid-kv-cache-manager",
		"--async-scheduling", "--enable-flashinfer-autotune", "--enable-bf16x3-router-gemm"),

	// VllmConfig.
	makeFlags(jsonValue, "--speculative-config/-sc", "--diffusion-config/-dc", "--kv-transfer-config", "--kv-events-config", "--ec-transfer-config",
		"--ec-manager-config", "--compilation-config/-cc", "--attention-config/-ac", "--reasoning-config", "--kernel-config", "--additional-config",
		"--structured-outputs-config", "--profiler-config", "--weight-transfer-config"),
	makeFlags(text, "--spec-method", "--spec-model"),
	makeFlags(optionalInteger, "--spec-tokens"),
	oneOf("--optimization-level", "0", "1", "2", "3"),
	oneOf("--performance-mode", "balanced", "interactivity", "throughput"),
	oneOf("--gdn-prefill-backend", "cutedsl", "flashinfer", "triton"),
	oneOf("--kda-prefill-backend", "auto", "flashkda", "triton"),
)

// rewriteVLLM does what vLLM's parser does before argparse. It replaces underscores in names with dashes, and
// -O3 with --optimization-level 3. It collects --x-config.key value as a key of a JSON flag.
func rewriteVLLM(p *parser, words []string) ([]string, error) {
	var out []string
	nested := map[string]map[string]any{}
	var order []string
	for i := 0; i < len(words); i++ {
		word := words[i]
		if optimization, ok := strings.CutPrefix(word, "-O"); ok {
			if optimization == "" && i+1 < len(words) {
				i++
				optimization = words[i]
			}
			out = append(out, "--optimization-level", strings.TrimPrefix(optimization, "="))
			continue
		}
		if !strings.HasPrefix(word, "--") {
			out = append(out, word)
			continue
		}
		name, value, joined := strings.Cut(word, "=")
		name, keys, dotted := strings.Cut(name, ".")
		name = strings.ReplaceAll(name, "_", "-")
		if f := p.byName[name]; dotted && f != nil && f.kind == jsonValue {
			if !joined {
				if i+1 == len(words) {
					return nil, p.flagError(f, "expected one argument")
				}
				i++
				value = words[i]
			}
			if nested[name] == nil {
				nested[name] = map[string]any{}
				order = append(order, name)
			}
			setNested(nested[name], strings.Split(keys, "."), value)
			continue
		}
		if dotted {
			name += "." + keys
		}
		if joined {
			name += "=" + value
		}
		out = append(out, name)
	}
	for _, name := range order {
		data, err := json.Marshal(nested[name])
		if err != nil {
			return nil, p.usageError("argument %s: %v", name, err)
		}
		out = append(out, name, string(data))
	}
	return out, nil
}

// setNested sets a nested key. A key that ends in a plus is a list, to which the value is added.
func setNested(in map[string]any, keys []string, value string) {
	for _, k := range keys[:len(keys)-1] {
		below, ok := in[k].(map[string]any)
		if !ok {
			below = map[string]any{}
			in[k] = below
		}
		in = below
	}
	read := func(s string) any {
		var v any
		if json.Unmarshal([]byte(s), &v) != nil {
			return s
		}
		return v
	}
	last := keys[len(keys)-1]
	key, adds := strings.CutSuffix(last, "+")
	if !adds {
		in[last] = read(value)
		return
	}
	list, _ := in[key].([]any)
	for item := range strings.SplitSeq(value, ",") {
		list = append(list, read(item))
	}
	in[key] = list
}

func configureVLLM(p *parser, cfg *Config, args *arguments, own ownSettings) error {
	e := &cfg.Engine
	e.ModelPath = "Qwen/Qwen3-0.6B"
	if model, ok := args.textOf("--model"); ok {
		e.ModelPath = model
	}
	if len(args.positional) > 0 {
		e.ModelPath = args.positional[0]
	}
	names := args.values["--served-model-name"]
	if len(names) == 0 {
		names = []string{e.ModelPath}
	}
	cfg.Model, e.Aliases = names[0], names[1:]
	for _, module := range args.values["--lora-modules"] {
		name, err := loraName(p, module)
		if err != nil {
			return err
		}
		e.Aliases = append(e.Aliases, name)
	}
	// envs.py of vLLM accepts these words, in upper or lower case.
	if allowed, _ := own.lookup("VLLM_ALLOW_RUNTIME_LORA_UPDATING"); !args.isOn("--enable-lora") || !slices.Contains([]string{"1", "true"}, strings.ToLower(allowed)) {
		cfg.AdapterSlots = 0
	} else if !own.given["adapter-slots"] {
		cfg.AdapterSlots = math.MaxInt
	}
	cfg.Host = "0.0.0.0"
	if host, ok := args.textOf("--host"); ok {
		cfg.Host = host
	}
	cfg.Port = 8000
	if port, ok := args.integerOf("--port"); ok {
		cfg.Port = port
	}
	if e.APIKeys = args.values["--api-key"]; e.APIKeys == nil {
		if key, ok := own.lookup("VLLM_API_KEY"); ok && key != "" {
			e.APIKeys = []string{key}
		}
	}
	e.RootPath, _ = args.textOf("--root-path")
	e.CertFile, _ = args.textOf("--ssl-certfile")
	e.KeyFile, _ = args.textOf("--ssl-keyfile")
	e.NoMetrics = args.isOn("--disable-log-stats")
	e.CountLoad = args.isOn("--enable-server-load-tracking")
	e.Arguments = args.values

	var refused []string
	// atLeast reads a number and checks it like pydantic.
	atLeast := func(config, flag string, least int, set func(int)) {
		n, ok := args.integerOf(flag)
		switch {
		case !ok:
		case n < least:
			field := strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_")
			refused = append(refused, fmt.Sprintf("1 validation error for %s\n%s\n  Input should be greater than or equal to %d [type=greater_than_equal, input_value=%d, input_type=int]", config, field, least, n))
		default:
			set(n)
		}
	}
	atLeast("ParallelConfig", "--tensor-parallel-size", 1, func(n int) { e.Tensor = n })
	atLeast("ParallelConfig", "--pipeline-parallel-size", 1, func(n int) { e.Pipeline = n })
	atLeast("ParallelConfig", "--data-parallel-size", 1, func(n int) { e.Data = n })
	if !own.given["concurrency"] {
		cfg.Concurrency = 256
	}
	atLeast("SchedulerConfig", "--max-num-seqs", 1, func(n int) { cfg.Concurrency = n })
	if !own.given["queue"] {
		cfg.Queue = math.MaxInt
	}
	// The limit includes the running requests.
	atLeast("SchedulerConfig", "--max-num-queued-reqs", 1, func(n int) { cfg.Queue = max(0, n-cfg.Concurrency) })
	// -1 means the model's own length.
	if n, ok := args.integerOf("--max-model-len"); ok && n != -1 {
		atLeast("ModelConfig", "--max-model-len", 1, func(n int) { cfg.MaxModelLen = n })
	}
	atLeast("ModelConfig", "--seed", 0, func(n int) { cfg.Seed = uint64(n) })
	if !own.given["drain-timeout"] {
		// This is the shortest timeout, because 0 means the default.
		cfg.DrainTimeout = time.Nanosecond
	}
	atLeast("VllmConfig", "--shutdown-timeout", 0, func(n int) { cfg.DrainTimeout = max(time.Nanosecond, time.Duration(n)*time.Second) })
	if share, ok := args.decimalOf("--gpu-memory-utilization"); ok {
		e.Memory = share
		if !(share > 0 && share <= 1) {
			refused = append(refused, fmt.Sprintf("1 validation error for CacheConfig\ngpu_memory_utilization\n  Input should be greater than 0 and less than or equal to 1 [input_value=%g, input_type=float]", share))
		}
	}
	if value, ok := args.textOf("--kv-transfer-config"); ok {
		role, connector, id, problem := kvTransfer(value)
		if problem != "" {
			refused = append(refused, "1 validation error for KVTransferConfig\n"+problem)
		}
		e.Role = role
		var err error
		if e.KVTransfer, err = kvTransferOf(p, own.lookup, connector, id); err != nil {
			return err
		}
	}
	if args.isOn("--enable-auto-tool-choice") && !args.hasKey("--tool-call-parser") {
		return p.valueError("TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser")
	}
	if args.isOn("--enable-log-outputs") && !args.isOn("--enable-log-requests") {
		return p.valueError("TypeError: Error: --enable-log-outputs requires --enable-log-requests")
	}
	if len(refused) > 0 {
		return p.valueError("pydantic_core._pydantic_core.ValidationError: " + strings.Join(refused, "\n"))
	}
	return nil
}

// loraName returns the name of a LoRA module, which is given as name=path or JSON.
func loraName(p *parser, module string) (string, error) {
	if name, _, ok := strings.Cut(module, "="); ok && !strings.Contains(module, ",") {
		return name, nil
	}
	var v struct{ Name, Path string }
	if json.Unmarshal([]byte(module), &v) != nil {
		return "", p.usageError("Invalid JSON format for --lora-modules: %s", module)
	}
	if v.Name == "" || v.Path == "" {
		return "", p.usageError("Invalid fields for --lora-modules: %s - name and path are required", module)
	}
	return v.Name, nil
}

// kvTransfer checks a KVTransferConfig and returns the fields that have an effect.
func kvTransfer(value string) (role, connector, engineID, problem string) {
	var v struct {
		Connector      *string        `json:"kv_connector"`
		EngineID       *string        `json:"engine_id"`
		BufferDevice   *string        `json:"kv_buffer_device"`
		BufferSize     *float64       `json:"kv_buffer_size"`
		Role           *string        `json:"kv_role"`
		Rank           *int           `json:"kv_rank"`
		ParallelSize   *int           `json:"kv_parallel_size"`
		IP             *string        `json:"kv_ip"`
		Port           *int           `json:"kv_port"`
		Extra          map[string]any `json:"kv_connector_extra_config"`
		ModulePath     *string        `json:"kv_connector_module_path"`
		PermuteLocalKV *bool          `json:"enable_permute_local_kv"`
		FailurePolicy  *string        `json:"kv_load_failure_policy"`
	}
	if err := decodeStrict([]byte(value), &v); err != nil {
		return "", "", "", "  " + err.Error()
	}
	known := []string{"kv_producer", "kv_consumer", "kv_both"}
	switch {
	case v.Role != nil && !slices.Contains(known, *v.Role):
		return "", "", "", fmt.Sprintf("kv_role\n  Input should be 'kv_producer', 'kv_both' or 'kv_consumer' [type=literal_error, input_value=%s, input_type=str]", quotePython(*v.Role))
	case v.Connector != nil && v.Role == nil:
		return "", "", "", "  Value error, Please specify kv_role when kv_connector is set, supported roles are " + strings.Join(known, ", ")
	}
	optional := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	return optional(v.Role), optional(v.Connector), optional(v.EngineID), ""
}

func vllmRoutes(s *Server, route func(method, path string, handle http.HandlerFunc)) {
	route("GET", "/health", s.handleBareHealth)
	route("GET", "/ping", s.handleBareHealth)
	route("POST", "/ping", s.handleBareHealth)
	route("GET", "/version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": cmp.Or(s.cfg.EngineVersion, vllmVersion)})
	})
	route("GET", "/load", func(w http.ResponseWriter, _ *http.Request) {
		load := 0
		if s.cfg.Engine.CountLoad {
			running, waiting := s.queue.countRequests()
			load = running + waiting
		}
		writeJSON(w, http.StatusOK, map[string]int{"server_load": load})
	})
	route("GET", "/metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}).ServeHTTP)
	adapterRoutes(s, route)
}

// openAIError returns the error object that both engines use.
func openAIError(e *apiError) map[string]any {
	var param any
	if e.param != "" {
		param = e.param
	}
	kind := map[int]string{
		http.StatusBadRequest: "BadRequestError", http.StatusNotFound: "NotFoundError", http.StatusInternalServerError: "InternalServerError",
	}[e.status]
	return map[string]any{"message": e.message, "type": cmp.Or(kind, strings.ReplaceAll(http.StatusText(e.status), " ", "")), "param": param, "code": e.status}
}

// fastAPIDetail returns FastAPI's body for an unknown path or method, or nil for other errors.
func fastAPIDetail(e *apiError) map[string]string {
	if e.code == codeNotFound || e.code == codeMethodNotAllowed {
		return map[string]string{"detail": http.StatusText(e.status)}
	}
	return nil
}

var numbers = regexp.MustCompile(`\d+`)

// olderThan reports whether a version is older than major.minor. An empty version is the newest.
func olderThan(version string, major, minor int) bool {
	if version == "" {
		return false
	}
	found := append(numbers.FindAllString(version, 2), "0", "0")
	a, errA := strconv.Atoi(found[0])
	b, errB := strconv.Atoi(found[1])
	return errA == nil && errB == nil && (a < major || a == major && b < minor)
}
