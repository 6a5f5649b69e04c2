package modelserver

import (
	"bytes"
	"context"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

type variables map[string]string

func (v variables) lookup(name string) (string, bool) { value, ok := v[name]; return value, ok }

func parseEngine(t *testing.T, line []string, env variables) Config {
	t.Helper()
	cfg, portGiven, err := ParseArgs(line, env.lookup)
	require.NoError(t, err)
	require.True(t, portGiven)
	return cfg
}

func TestEngineCommandLine(t *testing.T) {
	for _, tc := range []struct {
		line  string // the words, separated by spaces
		env   variables
		check func(t *testing.T, cfg Config)
	}{
		{"vllm serve meta-llama/Llama-3.1-8B-Instruct", nil, func(t *testing.T, cfg Config) {
			require.Equal(t, "vllm", cfg.Engine.Name)
			require.Equal(t, "meta-llama/Llama-3.1-8B-Instruct", cfg.Model)
			require.Equal(t, "0.0.0.0", cfg.Host)
			require.Equal(t, 8000, cfg.Port)
			require.Equal(t, 256, cfg.Concurrency)
			require.Equal(t, math.MaxInt, cfg.Queue)
			require.Equal(t, time.Nanosecond, cfg.DrainTimeout)
			require.Equal(t, 1, cfg.withDefaults().Engine.Tensor)
		}},
		{"/usr/local/bin/vllm serve -tp 8 --pipeline_parallel_size=2 -dp=3 M --max-model-len 32k --max-num-seqs 16 --port 0 --host ::1 " +
			"--gpu-memory-utilization .95 --seed 7 --shutdown-timeout 45 --max-num-queued-reqs 20 --root-path /m", nil, func(t *testing.T, cfg Config) {
			require.Equal(t, "M", cfg.Model)
			require.Equal(t, [...]int{8, 2, 3}, [...]int{cfg.Engine.Tensor, cfg.Engine.Pipeline, cfg.Engine.Data})
			require.Equal(t, 32_000, cfg.MaxModelLen)
			require.Equal(t, 16, cfg.Concurrency)
			require.Equal(t, 4, cfg.Queue, "the limit includes running requests")
			require.Equal(t, 0, cfg.Port)
			require.Equal(t, "::1", cfg.Host)
			require.InDelta(t, .95, cfg.Engine.Memory, 1e-9)
			require.EqualValues(t, 7, cfg.Seed)
			require.Equal(t, 45*time.Second, cfg.DrainTimeout)
			require.Equal(t, "/m", cfg.Engine.RootPath)
		}},
		{"vllm serve M --max-model-len 32K --served-model-name a b --api-key k1 k2 --no-enable-prefix-caching --enforce-eager -O3 -q fp8 " +
			"--lora-modules sql=/l --hf-token --middleware m1 --cudagraph-capture-sizes 1 2 4", nil, func(t *testing.T, cfg Config) {
			require.Equal(t, 32_768, cfg.MaxModelLen)
			require.Equal(t, "a", cfg.Model)
			require.Equal(t, []string{"b", "sql"}, cfg.Engine.Aliases)
			require.Equal(t, []string{"k1", "k2"}, cfg.Engine.APIKeys)
			require.Equal(t, "M", cfg.Engine.ModelPath)
			require.Equal(t, []string{"3"}, cfg.Engine.Arguments["--optimization-level"])
			require.Equal(t, []string{"false"}, cfg.Engine.Arguments["--enable-prefix-caching"])
		}},
		{`vllm serve --model M --max-model-len auto --kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_producer"}`, nil, func(t *testing.T, cfg Config) {
			require.Equal(t, "M", cfg.Model)
			require.Equal(t, 32_768, cfg.MaxModelLen)
			require.Equal(t, "kv_producer", cfg.Engine.Role)
		}},
		{"vllm serve M --kv-transfer-config.kv_connector NixlConnector --kv_transfer_config.kv_role=kv_both --compilation-config.cudagraph_capture_sizes+ 1,2", nil, func(t *testing.T, cfg Config) {
			require.Equal(t, "kv_both", cfg.Engine.Role)
			require.JSONEq(t, `{"cudagraph_capture_sizes":[1,2]}`, cfg.Engine.Arguments["--compilation-config"][0])
		}},
		{"python3 -m vllm.entrypoints.openai.api_server --model M --gpu-mem 0.5", nil, func(t *testing.T, cfg Config) {
			require.Equal(t, "M", cfg.Model)
			require.InDelta(t, .5, cfg.Engine.Memory, 1e-9, "a flag may be shortened")
		}},
		{"vllm serve M", variables{
			"MODELSERVER_LOAD_TIME": "3s", "MODELSERVER_TOKEN_RATE": "5", "MODELSERVER_FAULT_NEVER_READY": "true", "MODELSERVER_VERSION_LABEL": "v2",
			"MODELSERVER_CONCURRENCY": "3", "MODELSERVER_MODEL": "other", "PORT": "1", "VLLM_API_KEY": "secret", "MODELSERVER_DRAIN_TIMEOUT": "9s",
		}, func(t *testing.T, cfg Config) {
			require.Equal(t, 3*time.Second, cfg.LoadTime)
			require.InDelta(t, 5, cfg.TokenRate, 0)
			require.True(t, cfg.Faults.NeverReady)
			require.Equal(t, "v2", cfg.VersionLabel)
			require.Equal(t, 3, cfg.Concurrency)
			require.Equal(t, "M", cfg.Model, "the engine has a flag for it")
			require.Equal(t, 8000, cfg.Port, "the engine reads no PORT")
			require.Equal(t, []string{"secret"}, cfg.Engine.APIKeys)
			require.Equal(t, 9*time.Second, cfg.DrainTimeout)
		}},

		{"python3 -m sglang.launch_server --model-path M --tp 4", nil, func(t *testing.T, cfg Config) {
			require.Equal(t, "sglang", cfg.Engine.Name)
			require.Equal(t, "M", cfg.Model)
			require.Equal(t, "127.0.0.1", cfg.Host)
			require.Equal(t, 30000, cfg.Port)
			require.Equal(t, 4, cfg.Engine.Tensor)
			require.True(t, cfg.Engine.NoMetrics)
			require.Equal(t, math.MaxInt, cfg.Queue)
		}},
		{"sglang serve --model M --host 0.0.0.0 --port 0 --context-length 4096 --max-running-requests 2 --max-queued-requests 3 --enable-metrics " +
			"--served-model-name n --api-key k --mem-fraction-static 0.8 --dp-size 2 --random-seed 3 --disaggregation-mode prefill " +
			"--skip-server-warmup --chunked-prefill-size -1", variables{"MODELSERVER_WARM_UP_TIME": "4s"}, func(t *testing.T, cfg Config) {
			require.Equal(t, "n", cfg.Model)
			require.Equal(t, 4096, cfg.MaxModelLen)
			require.Equal(t, 2, cfg.Concurrency)
			require.Equal(t, 3, cfg.Queue)
			require.False(t, cfg.Engine.NoMetrics)
			require.Equal(t, []string{"k"}, cfg.Engine.APIKeys)
			require.Equal(t, 2, cfg.Engine.Data)
			require.EqualValues(t, 3, cfg.Seed)
			require.Equal(t, "prefill", cfg.Engine.Role)
			require.Zero(t, cfg.WarmUpTime)
			require.Equal(t, []string{"-1"}, cfg.Engine.Arguments["--chunked-prefill-size"], "a negative number is a value")
		}},
		{"sglang --model-path M --max-total-tokens 1000", variables{"MODELSERVER_WARM_UP_TIME": "4s"}, func(t *testing.T, cfg Config) {
			require.Equal(t, 1000, cfg.KVCacheTokens)
			require.Equal(t, 4*time.Second, cfg.WarmUpTime)
		}},
	} {
		t.Run(tc.line, func(t *testing.T) {
			words := strings.Fields(tc.line)
			require.True(t, IsEngineCommand(words))
			cfg := parseEngine(t, words, tc.env)
			tc.check(t, cfg)
			_, err := New(cfg)
			require.NoError(t, err)
		})
	}
}

func TestEngineCommandLine_RefusalSaysWhy(t *testing.T) {
	const vllmUsage, sglangUsage = "usage: vllm serve [model_tag] [options]\n", "usage: launch_server.py [-h] --model-path MODEL_PATH [options]\n"
	for line, tc := range map[string]struct {
		code    int
		message string
	}{
		"vllm serve M --foo":                                      {2, vllmUsage + "vllm serve: error: unrecognized arguments: --foo"},
		"vllm serve M --foo bar N --load-time=1s":                 {2, "vllm serve: error: unrecognized arguments: --foo bar N --load-time=1s"},
		"vllm serve M --task=embed":                               {2, "unrecognized arguments: --task=embed"},
		"vllm serve M --port eighty":                              {2, "argument --port: invalid int value: 'eighty'"},
		"vllm serve M -tp 2.5":                                    {2, "argument --tensor-parallel-size/-tp: invalid int value: '2.5'"},
		"vllm serve M --block-size x":                             {2, "argument --block-size: Value x cannot be converted to <class 'int'>."},
		"vllm serve M --gpu-memory-utilization much":              {2, "argument --gpu-memory-utilization: invalid float value: 'much'"},
		"vllm serve M --max-model-len 1.5K":                       {2, "argument --max-model-len: Decimals are not allowed with binary suffixes like K. Did you mean to use 1.5k instead?"},
		"vllm serve M --max-model-len 99999999999T":               {2, "argument --max-model-len: Value 99999999999T is too large."},
		"vllm serve M --scheduling-policy lifo":                   {2, "argument --scheduling-policy: invalid choice: 'lifo' (choose from 'fcfs', 'priority')"},
		"vllm serve M --port":                                     {2, "argument --port: expected one argument"},
		"vllm serve M --port --seed 1":                            {2, "argument --port: expected one argument"},
		"vllm serve M --served-model-name":                        {2, "argument --served-model-name: expected at least one argument"},
		"vllm serve M --enforce-eager=yes":                        {2, "argument --enforce-eager: ignored explicit argument 'yes'"},
		"vllm serve M --enable-e":                                 {2, "ambiguous option: --enable-e could match --enable-"},
		"vllm serve M --speculative-config {":                     {2, "argument --speculative-config/-sc: Value { cannot be converted to <function loads>."},
		"vllm serve M --compilation-config.mode":                  {2, "argument --compilation-config/-cc: expected one argument"},
		"vllm serve M --lora-modules a,b":                         {2, "Invalid JSON format for --lora-modules: a,b"},
		"vllm serve M --tensor-parallel-size 0":                   {1, "1 validation error for ParallelConfig\ntensor_parallel_size\n  Input should be greater than or equal to 1"},
		"vllm serve M --gpu-memory-utilization 1.1":               {1, "CacheConfig\ngpu_memory_utilization"},
		"vllm serve M --max-num-seqs -3":                          {1, "SchedulerConfig\nmax_num_seqs"},
		"vllm serve M --max-model-len 0":                          {1, "ModelConfig\nmax_model_len"},
		"vllm serve M --enable-auto-tool-choice":                  {1, "--enable-auto-tool-choice requires --tool-call-parser"},
		"vllm serve M --config f.yaml":                            {1, "give them on the command line instead of --config"},
		`vllm serve M --kv-transfer-config {"a":1}`:               {1, `unknown field "a"`},
		`vllm serve M --kv-transfer-config {"kv_connector":"N"}`:  {1, "Please specify kv_role when kv_connector is set"},
		`vllm serve M --kv-transfer-config {"kv_role":"prefill"}`: {1, "Input should be 'kv_producer', 'kv_both' or 'kv_consumer'"},
		`vllm serve M --kv-transfer-config {"kv_port":"x"}`:       {1, "kv_port"},
		"vllm serve --help":                                       {0, "--tensor-parallel-size"},
		"sglang serve":                                            {2, sglangUsage + "launch_server.py: error: the following arguments are required: --model-path/--model"},
		"sglang --model-path M --max-model-len 3":                 {2, "unrecognized arguments: --max-model-len 3"},
		"sglang --model-path M --context_length 3":                {2, "unrecognized arguments: --context_length 3"},
		"sglang --model-path M word":                              {2, "unrecognized arguments: word"},
		"sglang --model-path M --dtype int4":                      {2, "argument --dtype: invalid choice: 'int4' (choose from 'auto', 'half', "},
		"sglang --model-path M --tp-size eight":                   {2, "argument --tensor-parallel-size/--tp-size: invalid int value: 'eight'"},
		"sglang --model-path M --context-length 32k":              {2, "argument --context-length: invalid int value: '32k'"},
		"sglang --model-path M --no-enable-metrics":               {2, "unrecognized arguments: --no-enable-metrics"},
		"sglang --model-path M --tp 0":                            {1, "tensor_parallel_size must be at least 1, not 0"},
		"sglang --model-path M --tp 3 --nnodes 2":                 {1, "tp_size must be divisible by number of nodes"},
		"sglang --model-path M --mem-fraction-static 1":           {1, "mem_fraction_static must be between 0 and 1"},
	} {
		t.Run(line, func(t *testing.T) {
			_, _, err := ParseArgs(strings.Fields(line), nil)
			var refused *CommandLineError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, tc.code, refused.ExitCode())
			require.Contains(t, err.Error(), tc.message)
		})
	}
	_, _, err := ParseArgs([]string{"vllm", "serve", "M"}, variables{"MODELSERVER_LOAD_TIME": "soon"}.lookup)
	require.ErrorContains(t, err, "--load-time")
	require.False(t, IsEngineCommand([]string{"vllm", "bench"}))
	require.False(t, IsEngineCommand(nil))
	require.True(t, IsEngineCommand([]string{"sh", "-c", `set -- "$@" --headless; exec "$0" "$@"`, "vllm", "serve", "M"}))
	require.False(t, IsEngineCommand([]string{"sh", "-c", `echo "$@"`, "vllm", "serve", "M"}))
}

func TestEngineFlags(t *testing.T) {
	t.Run("no name occurs twice", func(t *testing.T) {
		for _, e := range engines {
			p := newParser(e)
			slices.Sort(p.names)
			require.Equal(t, slices.Compact(slices.Clone(p.names)), p.names, e.name)
		}
	})
	t.Run("every flag takes a value of its kind", func(t *testing.T) {
		values := map[kind]string{text: "x", integer: "1", optionalInteger: "None", humanInteger: "1k", humanIntegerOrAuto: "-1", decimal: "0.5", optionalDecimal: "", jsonValue: "{}"}
		for _, e := range engines {
			p := newParser(e)
			for i := range e.flags {
				f := &e.flags[i]
				for name := range strings.SplitSeq(f.names, "/") {
					words := []string{name}
					if f.choices != nil {
						words = append(words, f.choices[0])
					} else if f.kind != switched && f.kind != boolean {
						words = append(words, values[f.kind])
					}
					args, err := p.parseWords(words)
					require.NoError(t, err, words)
					require.True(t, args.hasKey(f.firstName()), words)
				}
			}
		}
	})
}

func TestImageEntrypoint(t *testing.T) {
	for image, want := range map[string][]string{
		"vllm/vllm-openai":                            {"vllm", "serve"},
		"vllm/vllm-openai:v0.20.0":                    {"vllm", "serve"},
		"registry.example:5000/vllm/vllm-openai:v1":   {"vllm", "serve"},
		"registry.example/vllm/vllm-openai@sha256:00": {"vllm", "serve"},
		"registry.example/vllm":                       nil,
		"lmsysorg/sglang:latest":                      nil,
		"model:1":                                     nil,
		"":                                            nil,
	} {
		require.Equal(t, want, ImageEntrypoint(image), image)
	}
}

// startEngine runs a command line on a free port.
func startEngine(t *testing.T, line string, env variables) *endpoint {
	t.Helper()
	return start(t, parseEngine(t, strings.Fields(line), env))
}

func startEngineReady(t *testing.T, line string, env variables) *endpoint {
	t.Helper()
	e := startEngine(t, line, env)
	e.awaitHealth(http.StatusOK)
	return e
}

// scrape reads all families as Prometheus does.
func (e *endpoint) scrape() map[string]*dto.MetricFamily {
	e.t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(e.do("GET", "/metrics", "").body))
	require.NoError(e.t, err)
	return families
}

func labels(m *dto.Metric) map[string]string {
	all := map[string]string{}
	for _, l := range m.Label {
		all[l.GetName()] = l.GetValue()
	}
	return all
}

func TestEngineMetrics(t *testing.T) {
	gauge, counter, histogram := dto.MetricType_GAUGE, dto.MetricType_COUNTER, dto.MetricType_HISTOGRAM
	fast := variables{"MODELSERVER_TOKEN_RATE": "0", "MODELSERVER_TIME_TO_FIRST_TOKEN": "0s"}
	old := variables{"MODELSERVER_TOKEN_RATE": "0", "MODELSERVER_TIME_TO_FIRST_TOKEN": "0s", "MODELSERVER_ENGINE_VERSION": "0.10.1"}
	for name, tc := range map[string]struct {
		line   string
		env    variables
		want   map[string]dto.MetricType
		counts map[string]float64 // after one request of 3 tokens in and out
		absent []string
		labels map[string]string // of the gauge of running requests
	}{
		"vllm": {
			line: "vllm serve m", env: fast,
			want: map[string]dto.MetricType{
				"vllm:num_requests_running": gauge, "vllm:num_requests_waiting": gauge, "vllm:kv_cache_usage_perc": gauge,
				"vllm:prefix_cache_hits_total": counter, "vllm:num_preemptions_total": counter, "vllm:request_success_total": counter,
			},
			counts: map[string]float64{
				"vllm:prompt_tokens_total": 3, "vllm:generation_tokens_total": 3, "vllm:prefix_cache_queries_total": 3, "http_requests_total": 1,
				"vllm:time_to_first_token_seconds": 1, "vllm:inter_token_latency_seconds": 2, "vllm:e2e_request_latency_seconds": 1,
				"vllm:request_queue_time_seconds": 1, "vllm:request_inference_time_seconds": 1, "vllm:request_prefill_time_seconds": 1,
				"vllm:request_decode_time_seconds": 1, "vllm:request_prompt_tokens": 1, "vllm:request_generation_tokens": 1,
				"vllm:request_params_max_tokens": 1, "vllm:request_time_per_output_token_seconds": 1,
			},
			absent: []string{"vllm:gpu_cache_usage_perc", "modelserver_http_responses_total"},
			labels: map[string]string{"model_name": "m", "engine": "0"},
		},
		"vllm before 0.11": {
			line: "vllm serve m", env: old,
			want:   map[string]dto.MetricType{"vllm:gpu_cache_usage_perc": gauge, "vllm:num_requests_running": gauge},
			counts: map[string]float64{"vllm:time_per_output_token_seconds": 2, "vllm:gpu_prefix_cache_queries_total": 3},
			absent: []string{"vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds", "vllm:prefix_cache_queries_total"},
			labels: map[string]string{"model_name": "m", "engine": "0"},
		},
		"sglang": {
			line: "sglang --model m --enable-metrics", env: fast,
			want: map[string]dto.MetricType{
				"sglang:num_running_reqs": gauge, "sglang:num_queue_reqs": gauge, "sglang:token_usage": gauge, "sglang:num_used_tokens": gauge,
				"sglang:gen_throughput": gauge, "sglang:cache_hit_rate": gauge, "sglang:num_retracted_reqs": gauge, "sglang:num_aborted_requests_total": counter,
			},
			counts: map[string]float64{
				"sglang:prompt_tokens_total": 3, "sglang:generation_tokens_total": 3, "sglang:num_requests_total": 1, "sglang:http_requests_total": 1,
				"sglang:http_responses_total": 1, "sglang:time_to_first_token_seconds": 1, "sglang:inter_token_latency_seconds": 2,
				"sglang:e2e_request_latency_seconds": 1, "sglang:queue_time_seconds": 1,
			},
			absent: []string{"vllm:num_requests_running", "modelserver_http_responses_total"},
			labels: map[string]string{"model_name": "m", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := startEngineReady(t, tc.line, tc.env)
			require.Equal(t, 200, e.do("POST", "/v1/completions", `{"model":"m","prompt":"a b c"}`).status)
			e.eventually(func() bool { r, _ := e.server.queue.countRequests(); return r == 0 }, "the request ends")
			families := e.scrape()
			for metric, kind := range tc.want {
				require.NotNil(t, families[metric], metric)
				require.Equal(t, kind, families[metric].GetType(), metric)
				require.Equal(t, histogram == kind, families[metric].Metric[0].Histogram != nil)
			}
			for metric, count := range tc.counts {
				require.NotNil(t, families[metric], metric)
				m := families[metric].Metric[0]
				if m.Histogram != nil {
					require.InDelta(t, count, m.Histogram.GetSampleCount(), 0, metric)
				} else {
					require.InDelta(t, count, m.Counter.GetValue(), 0, metric)
				}
			}
			for _, metric := range tc.absent {
				require.Nil(t, families[metric], metric)
			}
			for _, running := range []string{"vllm:num_requests_running", "sglang:num_running_reqs"} {
				if f := families[running]; f != nil {
					require.Equal(t, tc.labels, labels(f.Metric[0]))
				}
			}
		})
	}
	t.Run("the gauges have the load", func(t *testing.T) {
		for line, names := range map[string][2]string{
			"vllm serve m --max-num-seqs 1":                              {"vllm:num_requests_running", "vllm:num_requests_waiting"},
			"sglang --model m --max-running-requests 1 --enable-metrics": {"sglang:num_running_reqs", "sglang:num_queue_reqs"},
		} {
			e := startEngineReady(t, line, variables{"MODELSERVER_TOKEN_RATE": "0.001"})
			ctx, leave := context.WithCancel(t.Context())
			for range 3 {
				go func() {
					req, _ := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"a b"}`))
					if r, err := e.client.Do(req); err == nil {
						_ = r.Body.Close()
					}
				}()
			}
			e.eventually(func() bool { _, w := e.server.queue.countRequests(); return w == 2 }, "two wait")
			families := e.scrape()
			require.InDelta(t, 1, families[names[0]].Metric[0].Gauge.GetValue(), 0)
			require.InDelta(t, 2, families[names[1]].Metric[0].Gauge.GetValue(), 0)
			leave()
			e.eventually(func() bool { r, w := e.server.queue.countRequests(); return r+w == 0 }, "all leave")
		}
	})
	t.Run("SGLang has no metrics without its flag, and vLLM has no engine metrics with --disable-log-stats", func(t *testing.T) {
		e := startEngineReady(t, "sglang --model m", nil)
		require.Equal(t, 404, e.do("GET", "/metrics", "").status)
		e = startEngineReady(t, "vllm serve m --disable-log-stats", nil)
		require.Nil(t, e.scrape()["vllm:num_requests_running"])
	})
}

func TestEngineLoads(t *testing.T) {
	// run starts a server on a port that the test knows before the server listens.
	run := func(t *testing.T, line string, env variables) (address string, calls *atomic.Int32, s *Server) {
		t.Helper()
		free, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address = free.Addr().String()
		require.NoError(t, free.Close())
		cfg := parseEngine(t, strings.Fields(line), env)
		calls = &atomic.Int32{}
		cfg.Listen = func(ctx context.Context) (net.Listener, error) {
			calls.Add(1)
			return new(net.ListenConfig).Listen(ctx, "tcp", address)
		}
		s, err = New(cfg)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			require.NoError(t, <-ended)
		})
		return address, calls, s
	}
	get := func(url string) int {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		r, err := client.Get(url)
		if err != nil {
			return 0
		}
		_ = r.Body.Close()
		return r.StatusCode
	}
	t.Run("vLLM refuses connections until the fault is lifted", func(t *testing.T) {
		address, calls, s := run(t, "vllm serve m", variables{"MODELSERVER_FAULT_NEVER_READY": "true"})
		require.Eventually(t, func() bool { return calls.Load() == 1 }, patience, time.Millisecond, "the server checks whether the port is free")
		require.Eventually(t, func() bool {
			_, err := net.Dial("tcp", address)
			return err != nil && strings.Contains(err.Error(), "connection refused")
		}, patience, time.Millisecond)
		_, err := s.faults.changeFaults(time.Now(), func(f *Faults) error { *f = Faults{}; return nil })
		require.NoError(t, err)
		require.Eventually(t, func() bool { return get("http://"+address+"/health") == 200 }, patience, time.Millisecond)
		require.EqualValues(t, 2, calls.Load())
	})
	t.Run("SGLang is unhealthy while it warms up, and serves", func(t *testing.T) {
		address, _, s := run(t, "sglang --model m --enable-metrics", variables{"MODELSERVER_WARM_UP_TIME": "1h", "MODELSERVER_TOKEN_RATE": "0"})
		require.Eventually(t, func() bool { return get("http://"+address+"/health") == 503 }, patience, time.Millisecond)
		require.Equal(t, 503, get("http://"+address+"/health_generate"))
		require.Equal(t, 200, get("http://"+address+"/model_info"))
		r, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a"}`))
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, 200, r.StatusCode)
		http.DefaultClient.CloseIdleConnections()
		s.warm.Store(true)
		require.Equal(t, 200, get("http://"+address+"/health"))
	})
}

func TestEngineEndpoints(t *testing.T) {
	t.Run("vLLM", func(t *testing.T) {
		e := startEngineReady(t, "vllm serve org/m --served-model-name a b --api-key k --root-path /r --enable-server-load-tracking --max-model-len 100", nil)
		for _, path := range []string{"/health", "/ping"} {
			r := e.do("GET", path, "")
			require.Equal(t, 200, r.status)
			require.Empty(t, r.body)
		}
		require.Equal(t, 200, e.do("POST", "/ping", "").status)
		require.JSONEq(t, `{"version":"`+vllmVersion+`"}`, string(e.do("GET", "/version", "").body))
		require.JSONEq(t, `{"server_load":0}`, string(e.do("GET", "/load", "").body))
		r := e.do("GET", "/nowhere", "")
		require.Equal(t, 404, r.status)
		require.JSONEq(t, `{"detail":"Not Found"}`, string(r.body))
		r = e.do("DELETE", "/health", "")
		require.Equal(t, 405, r.status)
		require.JSONEq(t, `{"detail":"Method Not Allowed"}`, string(r.body))

		r = e.do("GET", "/v1/models", "")
		require.Equal(t, 401, r.status)
		require.JSONEq(t, `{"error":"Unauthorized"}`, string(r.body))
		require.Equal(t, 401, e.do("GET", "/r/v1/models", "").status, "the root path does not avoid the check of the key")
		e.bearer = "other"
		require.Equal(t, 401, e.do("GET", "/v1/models", "").status)
		e.bearer = "k"
		list := parse[struct {
			Data []struct {
				ID, Root    string
				OwnedBy     string `json:"owned_by"`
				MaxModelLen int    `json:"max_model_len"`
			}
		}](t, e.do("GET", "/r/v1/models", "").body)
		require.Len(t, list.Data, 2)
		require.Equal(t, "a", list.Data[0].ID)
		require.Equal(t, "b", list.Data[1].ID)
		require.Equal(t, "org/m", list.Data[1].Root)
		require.Equal(t, "vllm", list.Data[0].OwnedBy)
		require.Equal(t, 100, list.Data[0].MaxModelLen)

		r = e.do("POST", "/v1/completions", `{"model":"b","prompt":"x"}`)
		require.Equal(t, 200, r.status, string(r.body))
		require.Equal(t, "a", parse[clientCompletion](t, r.body).Model, "the first name")
		r = e.do("POST", "/v1/completions", `{"model":"org/m","prompt":"x"}`)
		require.Equal(t, 404, r.status)
		problem := parse[struct{ Error map[string]any }](t, r.body).Error
		require.Equal(t, "NotFoundError", problem["type"])
		require.InDelta(t, 404, problem["code"], 0)
	})
	t.Run("vLLM's version", func(t *testing.T) {
		e := startEngineReady(t, "vllm serve m", variables{"MODELSERVER_ENGINE_VERSION": "0.9.2"})
		require.JSONEq(t, `{"version":"0.9.2"}`, string(e.do("GET", "/version", "").body))
	})
	t.Run("a full queue is 503 for vLLM and SGLang, and the queue has no limit by default", func(t *testing.T) {
		for _, line := range []string{"vllm serve m --max-num-seqs 1 --max-num-queued-reqs 1", "sglang --model m --max-running-requests 1 --max-queued-requests 0"} {
			e := startEngineReady(t, line, nil)
			leave := e.occupy(1)
			require.Equal(t, 503, e.do("POST", "/v1/completions", `{"model":"m","prompt":"x"}`).status)
			leave()
		}
	})
	t.Run("SGLang", func(t *testing.T) {
		e := startEngineReady(t, "sglang --model org/m --api-key k --tp 2 --context-length 50 --weight-version w3 --fastapi-root-path /r", variables{"MODELSERVER_TOKEN_RATE": "0"})
		require.Equal(t, 200, e.do("GET", "/health", "").status)
		require.Equal(t, 401, e.do("GET", "/model_info", "").status, "all paths except health and metrics need the key")
		e.bearer = "k"
		for _, path := range []string{"/model_info", "/get_model_info", "/r/model_info"} {
			info := parse[map[string]any](t, e.do("GET", path, "").body)
			require.Equal(t, "org/m", info["model_path"])
			require.Equal(t, "w3", info["weight_version"])
			require.Equal(t, true, info["is_generation"])
		}
		for _, path := range []string{"/server_info", "/get_server_info"} {
			body := e.do("GET", path, "").body
			info := parse[map[string]any](t, body)
			require.InDelta(t, 2, info["tp_size"], 0)
			require.InDelta(t, 50, info["context_length"], 0)
			require.Equal(t, sglangVersion, info["version"])
			require.NotContains(t, string(body), "api_key")
		}
		r := e.do("POST", "/v1/completions", `{"model":"anything","prompt":"x"}`)
		require.Equal(t, 200, r.status, string(r.body))
		require.Equal(t, "anything", parse[clientCompletion](t, r.body).Model)
		r = e.do("POST", "/v1/completions", `{"prompt":"x","max_tokens":50}`)
		require.Equal(t, 400, r.status)
		problem := parse[map[string]any](t, r.body)
		require.Equal(t, "error", problem["object"])
		require.Equal(t, "BadRequestError", problem["type"])
	})
}

func TestEngineStops(t *testing.T) {
	const slow = `{"model":"m","prompt":"0 1 2 3 4 5 6 7 8 9","stream":true}`
	pace := variables{"MODELSERVER_TOKEN_RATE": "20", "MODELSERVER_TIME_TO_FIRST_TOKEN": "0s"}
	rest := func(in *events) (last string) {
		for {
			data, ok := in.next()
			if !ok {
				return last
			}
			last = data
		}
	}
	t.Run("vLLM cuts its requests", func(t *testing.T) {
		e := startEngineReady(t, "vllm serve m", pace)
		in := e.stream(t.Context(), "/v1/completions", slow)
		_, ok := in.next()
		require.True(t, ok)
		e.stop()
		require.NoError(t, e.exit())
		last := rest(in)
		require.NotEqual(t, "[DONE]", last)
		require.NotContains(t, last, "error", "the answer ends without an error event")
	})
	t.Run("vLLM drains with --shutdown-timeout", func(t *testing.T) {
		e := startEngineReady(t, "vllm serve m --shutdown-timeout 20", pace)
		in := e.stream(t.Context(), "/v1/completions", slow)
		_, ok := in.next()
		require.True(t, ok)
		e.stop()
		require.Equal(t, "[DONE]", rest(in))
		require.NoError(t, e.exit())
	})
	t.Run("vLLM ends while it loads", func(t *testing.T) {
		e := startEngine(t, "vllm serve m", variables{"MODELSERVER_LOAD_TIME": "1h"})
		e.stop()
		require.NoError(t, e.exit())
	})
	t.Run("SGLang accepts requests until it is idle", func(t *testing.T) {
		e := startEngineReady(t, "sglang --model m", pace)
		in := e.stream(t.Context(), "/v1/completions", slow)
		_, ok := in.next()
		require.True(t, ok)
		e.stop()
		e.awaitHealth(http.StatusServiceUnavailable)
		require.Equal(t, 200, e.do("POST", "/v1/completions", `{"model":"m","prompt":"late"}`).status)
		require.Equal(t, "[DONE]", rest(in))
		require.NoError(t, e.exit())
	})
}

func TestThroughput_IsOfTheLastWholeSecond(t *testing.T) {
	var s throughput
	at := func(second int64) time.Time { return time.Unix(second, 5) }
	s.advanceSecond(at(10))
	s.now = 7
	s.advanceSecond(at(11))
	require.InDelta(t, 7, s.previous, 0)
	s.advanceSecond(at(13))
	require.Zero(t, s.previous, "a second without tokens")
}
