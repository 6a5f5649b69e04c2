package modelserver

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// sglang is SGLang's server, python3 -m sglang.launch_server or sglang serve.
//
// It listens when the model is loaded, and is healthy when it has warmed up. After SIGTERM it is unhealthy,
// accepts requests until none is left, and exits.
var sglang = engine{
	name:       "sglang",
	program:    "launch_server.py",
	usage:      "launch_server.py [-h] --model-path MODEL_PATH [options]",
	images:     []string{"lmsysorg/sglang"},
	entrypoint: nil, // the image has no entrypoint, so containers set the command
	flags:      sglangFlags,
	match: func(words []string) ([]string, bool) {
		if len(words) > 0 && path.Base(words[0]) == "sglang" {
			if len(words) > 1 && words[1] == "serve" {
				return words[2:], true
			}
			return words[1:], true
		}
		return pythonModule(words, "sglang.launch_server")
	},
	configure: configureSGLang,

	listensWhenLoaded: true,
	warmsUp:           true,
	acceptsUntilIdle:  true,
	anyModel:          true,
	statusQueueFull:   http.StatusServiceUnavailable,
	ownedBy:           "sglang",
	guards: func(path string) bool {
		return !strings.HasPrefix(path, "/health") && !strings.HasPrefix(path, "/metrics")
	},
	errorBody: func(e *apiError) any {
		if detail := fastAPIDetail(e); detail != nil {
			return detail
		}
		body := openAIError(e)
		body["object"] = "error"
		return body
	},
	routes:  sglangRoutes,
	metrics: newSGLangMetrics,
}

// sglangVersion is the version of SGLang that has these flags and metrics.
const sglangVersion = "0.5.9"

// SGLang's names of the roles in disaggregated serving.
const sglangPrefill, sglangDecode = "prefill", "decode"

const sglangDrain = 365 * 24 * time.Hour // SGLang has no limit

var (
	sglangDtypes     = []string{"auto", "half", "float16", "bfloat16", "float", "float32"}
	sglangQuantizers = []string{
		"awq", "fp8", "gptq", "marlin", "gptq_marlin", "awq_marlin", "bitsandbytes", "gguf", "modelopt", "modelopt_fp8", "modelopt_fp4",
		"petit_nvfp4", "w8a8_int8", "w8a8_fp8", "moe_wna16", "qoq", "w4afp8", "mxfp4", "mxfp8", "auto-round", "compressed-tensors",
		"modelslim", "quark_int4fp8_moe",
	}
	sglangLoadFormats = []string{
		"auto", "pt", "safetensors", "npcache", "dummy", "sharded_state", "gguf", "bitsandbytes", "layered", "flash_rl", "remote",
		"remote_instance", "fastsafetensors", "private", "runai_streamer",
	}
	sglangAttention = []string{
		"triton", "torch_native", "flex_attention", "dsa", "nsa", "cutlass_mla", "fa3", "fa4", "flashinfer", "flashmla", "trtllm_mla",
		"trtllm_mha", "dual_chunk_flash_attn", "aiter", "wave", "intel_amx", "ascend",
	}
)

// sglangFlags are the flags of SGLang's page docs/advanced_features/server_arguments.md as of summer 2026, in the
// page's order.
var sglangFlags = slices.Concat(
	// Model and tokenizer, HTTP server.
	makeFlags(text, "--model-path/--model", "--tokenizer-path", "--model-loader-extra-config", "--revision", "--model-impl", "--host",
		"--fastapi-root-path", "--warmups"),
	makeFlags(integer, "--tokenizer-worker-num", "--context-length", "--port", "--nccl-port"),
	oneOf("--tokenizer-mode", "auto", "slow"),
	oneOf("--load-format", sglangLoadFormats...),
	makeFlags(switched, "--skip-tokenizer-init", "--trust-remote-code", "--is-embedding", "--enable-multimodal", "--grpc-mode",
		"--skip-server-warmup", "--checkpoint-engine-wait-weights-before-ready"),

	// Quantization and data type.
	oneOf("--dtype", sglangDtypes...),
	oneOf("--quantization", sglangQuantizers...),
	oneOf("--kv-cache-dtype", "auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1"),
	makeFlags(text, "--quantization-param-path", "--modelopt-quant", "--modelopt-checkpoint-restore-path", "--modelopt-checkpoint-save-path",
		"--modelopt-export-path", "--rl-quant-profile"),
	makeFlags(switched, "--enable-fp32-lm-head", "--quantize-and-serve", "--enable-quant-communications"),

	// Memory and scheduling.
	makeFlags(decimal, "--mem-fraction-static", "--schedule-conservativeness", "--swa-full-tokens-ratio",
		"--prefill-delayer-token-usage-low-watermark", "--prefill-delayer-queue-min-ratio", "--prefill-delayer-max-delay-ms"),
	makeFlags(integer, "--max-running-requests", "--max-queued-requests", "--max-total-tokens", "--chunked-prefill-size", "--prefill-max-requests",
		"--max-prefill-tokens", "--priority-scheduling-preemption-threshold", "--page-size", "--prefill-delayer-max-delay-passes"),
	oneOf("--schedule-policy", "lpm", "random", "fcfs", "dfs-weight", "lof", "priority", "routing-key"),
	oneOf("--radix-eviction-policy", "lru", "lfu"),
	makeFlags(switched, "--enable-dynamic-chunking", "--enable-priority-scheduling", "--abort-on-priority-when-disabled",
		"--schedule-low-priority-values-first", "--disable-hybrid-swa-memory", "--enable-prefill-delayer"),
	listFlags(decimal, "--prefill-delayer-forward-passes-buckets", "--prefill-delayer-wait-seconds-buckets"),

	// Runtime options.
	makeFlags(text, "--device", "--constrained-json-whitespace-pattern", "--download-dir"),
	[]flag{{names: "--model-checksum", count: oneOrNone}},
	makeFlags(integer, "--tensor-parallel-size/--tp-size", "--pipeline-parallel-size/--pp-size", "--attention-context-parallel-size/--attn-cp-size",
		"--moe-data-parallel-size/--moe-dp-size", "--pp-max-micro-batch-size", "--pp-async-batch-depth", "--stream-interval", "--random-seed",
		"--dist-timeout", "--base-gpu-id", "--gpu-id-step"),
	makeFlags(decimal, "--watchdog-timeout", "--soft-watchdog-timeout"),
	makeFlags(switched, "--incremental-streaming-output", "--constrained-json-disable-any-whitespace", "--sleep-on-idle"),

	// Logging.
	makeFlags(text, "--log-level", "--log-level-http", "--crash-dump-folder", "--tokenizer-metrics-custom-labels-header", "--kv-events-config",
		"--otlp-traces-endpoint", "--export-metrics-to-file-dir"),
	oneOf("--log-requests-level", "0", "1", "2", "3"),
	oneOf("--log-requests-format", "text", "json"),
	listFlags(text, "--log-requests-target", "--uvicorn-access-log-exclude-prefixes", "--tokenizer-metrics-allowed-custom-labels",
		"--prompt-tokens-buckets", "--generation-tokens-buckets"),
	listFlags(decimal, "--bucket-time-to-first-token", "--bucket-inter-token-latency", "--bucket-e2e-request-latency"),
	makeFlags(decimal, "--gc-warning-threshold-secs"),
	makeFlags(integer, "--decode-log-interval"),
	makeFlags(switched, "--log-requests", "--show-time-cost", "--enable-metrics", "--enable-mfu-metrics", "--enable-metrics-for-all-schedulers",
		"--collect-tokens-histogram", "--enable-request-time-stats-logging", "--enable-trace", "--export-metrics-to-file"),

	// API.
	makeFlags(text, "--api-key", "--admin-api-key", "--served-model-name", "--weight-version", "--chat-template", "--hf-chat-template-name",
		"--completion-template", "--file-storage-path", "--tool-server"),
	oneOf("--reasoning-parser", "deepseek-r1", "deepseek-v3", "glm45", "gpt-oss", "kimi", "qwen3", "qwen3-thinking", "step3"),
	oneOf("--tool-call-parser", "deepseekv3", "deepseekv31", "glm", "glm45", "glm47", "gpt-oss", "kimi_k2", "llama3", "mistral", "pythonic",
		"qwen", "qwen25", "qwen3_coder", "step3", "gigachat3"),
	oneOf("--sampling-defaults", "openai", "model"),
	makeFlags(switched, "--enable-cache-report"),

	// Data parallelism, several nodes, overrides.
	makeFlags(integer, "--data-parallel-size/--dp-size", "--nnodes", "--node-rank"),
	oneOf("--load-balance-method", "auto", "round_robin", "follow_bootstrap_room", "total_requests", "total_tokens"),
	makeFlags(text, "--dist-init-addr/--nccl-init-addr", "--json-model-override-args", "--preferred-sampling-params"),

	// LoRA.
	makeFlags(integer, "--max-lora-rank", "--max-loras-per-batch", "--max-loaded-loras"),
	makeFlags(decimal, "--lora-drain-wait-threshold"),
	[]flag{{names: "--lora-target-modules", count: oneOrMore, choices: []string{
		"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj", "all",
	}}},
	[]flag{{names: "--lora-paths", count: anyNumber}},
	oneOf("--lora-eviction-policy", "lru", "fifo"),
	oneOf("--lora-backend", "triton", "csgmv", "ascend", "torch_native"),
	oneOf("--max-lora-chunk-size", "16", "32", "64", "128"),
	makeFlags(switched, "--enable-lora", "--enable-lora-overlap-loading"),

	// Kernels.
	oneOf("--attention-backend", sglangAttention...),
	oneOf("--prefill-attention-backend", sglangAttention...),
	oneOf("--decode-attention-backend", sglangAttention...),
	oneOf("--speculative-draft-attention-backend", sglangAttention...),
	oneOf("--sampling-backend", "flashinfer", "pytorch", "ascend"),
	oneOf("--grammar-backend", "xgrammar", "outlines", "llguidance", "none"),
	oneOf("--mm-attention-backend", "sdpa", "fa3", "fa4", "triton_attn", "ascend_attn", "aiter_attn"),
	makeFlags(text, "--dsa-prefill-backend/--nsa-prefill-backend/--nsa-prefill", "--dsa-decode-backend/--nsa-decode-backend/--nsa-decode"),
	oneOf("--fp8-gemm-backend", "auto", "deep_gemm", "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_deepgemm", "cutlass", "triton", "aiter"),
	oneOf("--fp4-gemm-backend", "auto", "flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm"),
	makeFlags(switched, "--disable-flashinfer-autotune"),

	// Speculative decoding.
	oneOf("--speculative-algorithm", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"),
	oneOf("--speculative-draft-load-format", sglangLoadFormats...),
	oneOf("--speculative-draft-model-quantization", sglangQuantizers...),
	oneOf("--speculative-attention-mode", "prefill", "decode"),
	oneOf("--speculative-ngram-match-type", "BFS", "PROB"),
	makeFlags(text, "--speculative-draft-model-path/--speculative-draft-model", "--speculative-draft-model-revision", "--speculative-token-map",
		"--speculative-moe-runner-backend", "--speculative-moe-a2a-backend"),
	makeFlags(integer, "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens",
		"--speculative-ngram-min-bfs-breadth", "--speculative-ngram-max-bfs-breadth", "--speculative-ngram-max-trie-depth",
		"--speculative-ngram-capacity"),
	makeFlags(decimal, "--speculative-accept-threshold-single", "--speculative-accept-threshold-acc"),
	makeFlags(switched, "--enable-multi-layer-eagle"),

	// Experts.
	makeFlags(integer, "--expert-parallel-size/--ep-size/--ep", "--ep-num-redundant-experts", "--eplb-rebalance-num-iterations",
		"--eplb-rebalance-layers-per-chunk", "--expert-distribution-recorder-buffer-size", "--moe-dense-tp-size"),
	oneOf("--moe-a2a-backend", "none", "deepep", "mooncake", "mori", "nixl", "ascend_fuseep"),
	oneOf("--moe-runner-backend", "auto", "deep_gemm", "triton", "triton_kernel", "flashinfer_trtllm", "flashinfer_trtllm_routed",
		"flashinfer_cutlass", "flashinfer_mxfp4", "flashinfer_cutedsl", "cutlass"),
	oneOf("--flashinfer-mxfp4-moe-precision", "default", "bf16"),
	oneOf("--deepep-mode", "normal", "low_latency", "auto"),
	oneOf("--deepep-dispatcher-output-dtype", "bf16", "fp8", "int8", "nvfp4", "auto"),
	oneOf("--elastic-ep-backend", "none", "mooncake"),
	makeFlags(text, "--ep-dispatch-algorithm", "--init-expert-location", "--eplb-algorithm", "--expert-distribution-recorder-mode",
		"--deepep-config", "--mooncake-ib-device"),
	makeFlags(decimal, "--eplb-min-rebalancing-utilization-threshold"),
	makeFlags(switched, "--enable-flashinfer-allreduce-fusion", "--enable-aiter-allreduce-fusion", "--enable-fused-grouped-gemm-combine",
		"--enable-eplb", "--enable-expert-distribution-metrics", "--enable-elastic-expert-backup", "--enable-deepep-waterfill",
		"--elastic-ep-rejoin"),

	// Mamba, hierarchical cache, offloading.
	makeFlags(integer, "--max-mamba-cache-size", "--mamba-track-interval", "--hicache-size", "--kt-cpuinfer", "--kt-threadpool-count",
		"--kt-num-gpu-experts", "--kt-max-deferred-experts-per-token", "--cpu-offload-gb", "--offload-group-size", "--offload-num-in-group",
		"--offload-prefetch-step", "--multi-item-scoring-delimiter"),
	makeFlags(decimal, "--mamba-full-memory-ratio", "--hicache-ratio"),
	oneOf("--mamba-ssm-dtype", "float32", "bfloat16", "float16"),
	oneOf("--mamba-scheduler-strategy", "auto", "no_buffer", "extra_buffer"),
	oneOf("--hicache-write-policy", "write_back", "write_through", "write_through_selective"),
	oneOf("--hicache-io-backend", "direct", "kernel", "kernel_ascend"),
	oneOf("--hicache-mem-layout", "layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head"),
	oneOf("--hicache-storage-backend", "file", "mooncake", "hf3fs", "nixl", "aibrix", "dynamic", "eic"),
	oneOf("--hicache-storage-prefetch-policy", "best_effort", "wait_complete", "timeout"),
	makeFlags(text, "--hicache-storage-backend-extra-config", "--hierarchical-sparse-attention-extra-config", "--kt-weight-path", "--kt-method",
		"--dllm-algorithm", "--dllm-algorithm-config", "--offload-mode"),
	makeFlags(switched, "--enable-hierarchical-cache", "--enable-lmcache"),

	// Optimization and debugging.
	makeFlags(integer, "--cuda-graph-max-bs", "--torch-compile-max-bs", "--piecewise-cuda-graph-max-tokens", "--triton-attention-num-kv-splits",
		"--triton-attention-split-tile-size", "--num-continuous-decode-steps", "--scheduler-recv-interval",
		"--dynamic-batch-tokenizer-batch-size"),
	listFlags(integer, "--cuda-graph-bs", "--numa-node"),
	makeFlags(decimal, "--tbo-token-distribution-threshold", "--dynamic-batch-tokenizer-batch-timeout"),
	oneOf("--piecewise-cuda-graph-compiler", "eager", "inductor"),
	oneOf("--rl-on-policy-target", "fsdp"),
	oneOf("--dsa-prefill-cp-mode/--nsa-prefill-cp-mode", "in-seq-split", "round-robin-split"),
	makeFlags(text, "--piecewise-cuda-graph-tokens", "--torchao-config", "--debug-tensor-dump-output-folder", "--debug-tensor-dump-layers",
		"--debug-tensor-dump-input-file", "--debug-tensor-dump-inject"),
	makeFlags(switched, "--disable-radix-cache", "--disable-cuda-graph", "--disable-cuda-graph-padding", "--enable-profile-cuda-graph",
		"--enable-cudagraph-gc", "--enable-layerwise-nvtx-marker", "--enable-nccl-nvls", "--enable-symm-mem",
		"--disable-flashinfer-cutlass-moe-fp4-allgather", "--enable-tokenizer-batch-encode", "--disable-tokenizer-batch-decode",
		"--disable-outlines-disk-cache", "--disable-custom-all-reduce", "--enable-mscclpp", "--enable-torch-symm-mem",
		"--disable-overlap-schedule", "--enable-mixed-chunk", "--enable-dp-attention", "--enable-dp-lm-head", "--enable-two-batch-overlap",
		"--enable-single-batch-overlap", "--enable-torch-compile", "--enable-torch-compile-debug-mode", "--disable-piecewise-cuda-graph",
		"--enforce-piecewise-cuda-graph", "--enable-nan-detection", "--enable-p2p-check", "--triton-attention-reduce-in-fp32",
		"--delete-ckpt-after-loading", "--enable-memory-saver", "--enable-weights-cpu-backup", "--enable-draft-weights-cpu-backup",
		"--allow-auto-truncate", "--enable-custom-logit-processor", "--flashinfer-mla-disable-ragged", "--disable-shared-experts-fusion",
		"--disable-chunked-prefix-cache", "--disable-fast-image-processor", "--keep-mm-feature-on-device", "--enable-return-hidden-states",
		"--enable-return-routed-experts", "--enable-deterministic-inference", "--enable-attn-tp-input-scattered",
		"--enable-dsa-prefill-context-parallel/--enable-nsa-prefill-context-parallel", "--enable-fused-qk-norm-rope",
		"--enable-precise-embedding-interpolation", "--enable-dynamic-batch-tokenizer"),

	// Disaggregation.
	oneOf("--disaggregation-mode", "null", "prefill", "decode"),
	oneOf("--disaggregation-transfer-backend", "mooncake", "nixl", "ascend", "fake"),
	oneOf("--encoder-transfer-backend", "zmq_to_scheduler", "zmq_to_tokenizer", "mooncake"),
	makeFlags(integer, "--disaggregation-bootstrap-port", "--num-reserved-decode-tokens", "--disaggregation-decode-polling-interval"),
	makeFlags(text, "--disaggregation-ib-device"),
	listFlags(text, "--encoder-urls"),
	makeFlags(switched, "--disaggregation-decode-enable-offload-kvcache", "--encoder-only", "--language-only"),

	// Loading of weights, multiplexing, modalities, and deprecated flags.
	listFlags(text, "--custom-weight-loader"),
	makeFlags(integer, "--weight-loader-prefetch-num-threads", "--remote-instance-weight-loader-seed-instance-service-port", "--sm-group-num",
		"--mm-max-concurrent-calls"),
	makeFlags(decimal, "--mm-per-request-timeout", "--hybrid-kvcache-ratio", "--load-watch-interval"),
	oneOf("--remote-instance-weight-loader-backend", "transfer_engine", "nccl"),
	makeFlags(text, "--remote-instance-weight-loader-seed-instance-ip", "--remote-instance-weight-loader-send-weights-group-ports",
		"--pdmux-config-path", "--config", "--decrypted-config-file", "--decrypted-draft-config-file", "--msprobe-dump-config", "--crash-on-nan"),
	makeFlags(jsonValue, "--mm-process-config", "--limit-mm-data-per-request", "--forward-hooks"),
	makeFlags(switched, "--weight-loader-disable-mmap", "--weight-loader-prefetch-checkpoints",
		"--remote-instance-weight-loader-start-seed-via-transfer-engine", "--enable-pdmux", "--enable-broadcast-mm-inputs-process",
		"--mm-enable-dp-encoder", "--enable-mm-global-cache", "--enable-prefix-mm-cache", "--enable-ep-moe", "--enable-deepep-moe",
		"--prefill-round-robin-balance", "--enable-flashinfer-cutlass-moe", "--enable-flashinfer-cutedsl-moe", "--enable-flashinfer-trtllm-moe",
		"--enable-triton-kernel-moe", "--enable-flashinfer-mxfp4-moe"),
)

func configureSGLang(p *parser, cfg *Config, args *arguments, own ownSettings) error {
	e := &cfg.Engine
	model, ok := args.textOf("--model-path")
	if !ok {
		return p.usageError("the following arguments are required: --model-path/--model")
	}
	e.ModelPath, cfg.Model = model, model
	if name, ok := args.textOf("--served-model-name"); ok {
		cfg.Model = name
	}
	cfg.Host = "127.0.0.1"
	if host, ok := args.textOf("--host"); ok {
		cfg.Host = host
	}
	cfg.Port = 30000
	if port, ok := args.integerOf("--port"); ok {
		cfg.Port = port
	}
	if key, ok := args.textOf("--api-key"); ok {
		e.APIKeys = []string{key}
	}
	e.RootPath, _ = args.textOf("--fastapi-root-path")
	e.NoMetrics = !args.isOn("--enable-metrics")
	if args.isOn("--skip-server-warmup") {
		cfg.WarmUpTime = 0
	}
	switch {
	case !args.isOn("--enable-lora"):
		cfg.AdapterSlots = 0
	case !own.given["adapter-slots"]:
		cfg.AdapterSlots = math.MaxInt
		if n, ok := args.integerOf("--max-loaded-loras"); ok && n > 0 {
			cfg.AdapterSlots = n
		}
	}
	e.Role, _ = args.textOf("--disaggregation-mode")
	if e.Role == "null" {
		e.Role = ""
	}
	e.Bootstrap.Port = 8998
	if port, ok := args.integerOf("--disaggregation-bootstrap-port"); ok {
		e.Bootstrap.Port = port
	}
	if value, ok := own.lookup("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"); ok {
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil || !(seconds > 0 && seconds < 1e6) {
			return p.valueError("ValueError: SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT must be a number of seconds, not " + quotePython(value))
		}
		e.Bootstrap.Timeout = time.Duration(seconds * float64(time.Second))
	}
	e.Arguments = args.values

	var refused []string
	atLeast := func(flag string, least int, set func(int)) {
		n, ok := args.integerOf(flag)
		switch {
		case !ok:
		case n < least:
			field := strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_")
			refused = append(refused, fmt.Sprintf("AssertionError: %s must be at least %d, not %d", field, least, n))
		default:
			set(n)
		}
	}
	atLeast("--tensor-parallel-size", 1, func(n int) { e.Tensor = n })
	atLeast("--pipeline-parallel-size", 1, func(n int) { e.Pipeline = n })
	atLeast("--data-parallel-size", 1, func(n int) { e.Data = n })
	atLeast("--nnodes", 1, func(n int) {
		if max(e.Tensor, 1)*max(e.Pipeline, 1)%n != 0 {
			refused = append(refused, "AssertionError: tp_size must be divisible by number of nodes")
		}
	})
	if !own.given["concurrency"] {
		cfg.Concurrency = 256
	}
	atLeast("--max-running-requests", 1, func(n int) { cfg.Concurrency = n })
	if !own.given["queue"] {
		cfg.Queue = math.MaxInt
	}
	atLeast("--max-queued-requests", 0, func(n int) { cfg.Queue = n })
	atLeast("--context-length", 1, func(n int) { cfg.MaxModelLen = n })
	atLeast("--max-total-tokens", 1, func(n int) { cfg.KVCacheTokens = n })
	atLeast("--random-seed", 0, func(n int) { cfg.Seed = uint64(n) })
	if !own.given["drain-timeout"] {
		cfg.DrainTimeout = sglangDrain
	}
	if share, ok := args.decimalOf("--mem-fraction-static"); ok {
		e.Memory = share
		if !(share > 0 && share < 1) {
			refused = append(refused, fmt.Sprintf("AssertionError: mem_fraction_static must be between 0 and 1, not %g", share))
		}
	}
	if len(refused) > 0 {
		return p.valueError(strings.Join(refused, "\n"))
	}
	return nil
}

func sglangRoutes(s *Server, route func(method, path string, handle http.HandlerFunc)) {
	route("GET", "/health", s.handleBareHealth)
	route("GET", "/health_generate", s.handleBareHealth)
	for _, path := range []string{"/model_info", "/get_model_info"} {
		route("GET", path, s.handleModelInfo)
	}
	for _, path := range []string{"/server_info", "/get_server_info"} {
		route("GET", path, s.handleServerInfo)
	}
	sglangAdapterRoutes(s, route)
	if !s.cfg.Engine.NoMetrics {
		route("GET", "/metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}).ServeHTTP)
	}
}

func (s *Server) handleModelInfo(w http.ResponseWriter, _ *http.Request) {
	args := &arguments{values: s.cfg.Engine.Arguments}
	tokenizer, _ := args.textOf("--tokenizer-path")
	weights, _ := args.textOf("--weight-version")
	writeJSON(w, http.StatusOK, map[string]any{
		"model_path": s.cfg.Engine.ModelPath, "tokenizer_path": cmp.Or(tokenizer, s.cfg.Engine.ModelPath), "is_generation": true,
		"preferred_sampling_params": nil, "weight_version": cmp.Or(weights, "default"),
		"has_image_understanding": false, "has_audio_understanding": false,
	})
}

// handleServerInfo answers with the command line, without keys, and with the load.
func (s *Server) handleServerInfo(w http.ResponseWriter, _ *http.Request) {
	info := map[string]any{}
	for flag, values := range s.cfg.Engine.Arguments {
		if strings.HasSuffix(flag, "api-key") {
			continue
		}
		field := strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_")
		if info[field] = values; len(values) == 1 {
			info[field] = plainValue(values[0])
		}
	}
	running, waiting := s.queue.countRequests()
	e := &s.cfg.Engine
	maps.Copy(info, map[string]any{
		"model_path": e.ModelPath, "served_model_name": s.cfg.Model, "host": s.cfg.Host, "port": s.cfg.Port,
		"tp_size": e.Tensor, "pp_size": e.Pipeline, "dp_size": e.Data, "disaggregation_mode": cmp.Or(e.Role, "null"),
		"context_length": s.cfg.MaxModelLen, "max_running_requests": s.cfg.Concurrency, "max_total_num_tokens": s.cfg.KVCacheTokens,
		"status": "ready", "version": cmp.Or(s.cfg.EngineVersion, sglangVersion),
		"internal_states": []map[string]any{{"num_running_reqs": running, "num_queue_reqs": waiting, "token_usage": s.cache.usedShare()}},
	})
	writeJSON(w, http.StatusOK, info)
}

// plainValue returns a flag's value as a JSON number, boolean or string.
func plainValue(value string) any {
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return n
	}
	if f, err := strconv.ParseFloat(value, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
		return f
	}
	if value == "true" || value == "false" {
		return value == "true"
	}
	return value
}

// throughput counts tokens by second.
type throughput struct {
	mu            sync.Mutex
	second        int64
	now, previous float64
}

func (t *throughput) advanceSecond(now time.Time) {
	if s := now.Unix(); s != t.second {
		if t.previous = t.now; s != t.second+1 {
			t.previous = 0
		}
		t.second, t.now = s, 0
	}
}

func (t *throughput) countToken() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advanceSecond(time.Now())
	t.now++
}

// perSecond returns the number of tokens in the last whole second.
func (t *throughput) perSecond() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advanceSecond(time.Now())
	return t.previous
}
