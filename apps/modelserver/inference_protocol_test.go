package modelserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// repository makes a model repository. models maps the name of a model to its model.json.
func repository(t *testing.T, models map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, file := range models {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		if file != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name, "model.json"), []byte(file), 0o644))
		}
	}
	return dir
}

func (e *endpoint) loadModel(name string) reply {
	return e.do("POST", "/v2/repository/models/"+name+"/load", "")
}

func (e *endpoint) unloadModel(name string) reply {
	return e.do("POST", "/v2/repository/models/"+name+"/unload", "{}")
}

func (e *endpoint) infer(name string) reply {
	return e.do("POST", "/v2/models/"+name+"/infer", `{"id":"1","inputs":[{"name":"text","shape":[2],"datatype":"BYTES","data":["a","b"]}]}`)
}

// index returns the states of the repository's models.
func (e *endpoint) index() map[string]string {
	states := map[string]string{}
	for _, m := range parse[[]struct{ Name, State string }](e.t, e.do("POST", "/v2/repository/index", "{}").body) {
		states[m.Name] = m.State
	}
	return states
}

func requireError(t *testing.T, r reply, status int, part string) {
	t.Helper()
	require.Equal(t, status, r.status, "%s", r.body)
	require.Contains(t, parse[struct{ Error string }](t, r.body).Error, part)
}

func TestInferenceProtocol(t *testing.T) {
	dir := repository(t, map[string]string{"a": "", "b": `{"memoryMib":1}`})
	e := startReady(t, Config{ModelRepository: dir, VersionLabel: "v7"})

	t.Run("describes the server and loaded models", func(t *testing.T) {
		require.Equal(t, 200, e.do("GET", "/v2/health/live", "").status)
		require.Equal(t, 200, e.do("GET", "/v2/health/ready", "").status)
		require.JSONEq(t, `{"name":"modelserver","version":"v7","extensions":["model_repository"]}`, string(e.do("GET", "/v2", "").body))
		requireError(t, e.do("GET", "/v2/models/a", ""), 404, "unknown model: 'a'")
		requireError(t, e.do("GET", "/v2/models/a/ready", ""), 404, "unknown model: 'a'")
		requireError(t, e.infer("a"), 404, "unknown model: 'a'")
		require.Equal(t, map[string]string{"a": "UNAVAILABLE", "b": "UNAVAILABLE"}, e.index())

		require.Equal(t, 200, e.loadModel("a").status)
		require.Equal(t, map[string]string{"a": "READY", "b": "UNAVAILABLE"}, e.index())
		require.JSONEq(t, `[{"name":"a","version":"1","state":"READY","reason":""}]`, string(e.do("POST", "/v2/repository/index", `{"ready":true}`).body))
		require.Equal(t, 200, e.do("GET", "/v2/models/a/ready", "").status)
		require.Equal(t, 200, e.do("GET", "/v2/models/a/versions/1/ready", "").status)
		requireError(t, e.do("GET", "/v2/models/a/versions/2/ready", ""), 404, "version 2")
		require.JSONEq(t, `{"name":"a","versions":["1"],"platform":"echo","inputs":[{"name":"text","datatype":"BYTES","shape":[-1]}],
			"outputs":[{"name":"text","datatype":"BYTES","shape":[-1]}]}`, string(e.do("GET", "/v2/models/a", "").body))
		require.Equal(t, 200, e.unloadModel("a").status)
		requireError(t, e.infer("a"), 404, "unknown model")
		require.Equal(t, 200, e.unloadModel("a").status, "unloading a model that is not loaded is not an error")
	})
	t.Run("infers", func(t *testing.T) {
		require.Equal(t, 200, e.loadModel("a").status)
		r := e.infer("a")
		require.Equal(t, 200, r.status)
		require.Equal(t, "v7", r.header.Get("X-Model-Version"))
		require.JSONEq(t, `{"model_name":"a","model_version":"1","id":"1","outputs":[{"name":"text","shape":[2],"datatype":"BYTES","data":["a","b"]}]}`, string(r.body))
		two := `{"inputs":[{"name":"x","shape":[2,2],"datatype":"INT64","data":[[1,2],[3,9007199254740993]]},{"name":"y","shape":[1],"datatype":"BOOL","data":[true]}],"outputs":[{"name":"x"}]}`
		r = e.do("POST", "/v2/models/a/versions/1/infer", two)
		require.Equal(t, 200, r.status)
		require.Contains(t, string(r.body), `[[1,2],[3,9007199254740993]]`)
		require.NotContains(t, string(r.body), "BOOL")
	})
	t.Run("refuses invalid inference requests", func(t *testing.T) {
		require.Equal(t, 200, e.loadModel("a").status)
		for body, part := range map[string]string{
			`{`:  "not valid JSON",
			`{}`: "inputs is missing",
			`{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1]}]}`:                              "data has 1 values, but its shape has 2",
			`{"inputs":[{"name":"x","shape":[1],"datatype":"FP31","data":[1]}]}`:                              "datatype must be one of BOOL",
			`{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":[1]}]}`:                             "which is not of type BYTES",
			`{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":{"a":"b"}}]}`:                       "must be a list",
			`{"inputs":[{"name":"x","shape":[-1],"datatype":"BYTES","data":["a"]}]}`:                          "shape must not have -1",
			`{"inputs":[{"shape":[1],"datatype":"BYTES","data":["a"]}]}`:                                      "name is missing",
			`{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}],"outputs":[{"name":"other"}]}`: "unexpected inference output 'other'",
		} {
			requireError(t, e.do("POST", "/v2/models/a/infer", body), 400, part)
		}
	})
	t.Run("refuses models without a folder in the repository", func(t *testing.T) {
		requireError(t, e.loadModel("c"), 400, "failed to load 'c': it is not in the repository")
		requireError(t, e.loadModel("..%2Fb"), 400, "has a name that is not the name of a folder")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "b", "model.json"), []byte(`{"memory":1}`), 0o644))
		requireError(t, e.loadModel("b"), 400, "unknown field")
	})
	t.Run("loads a new version in place of the old version", func(t *testing.T) {
		require.Equal(t, 200, e.loadModel("a").status)
		require.NoError(t, os.Mkdir(filepath.Join(dir, "a", "12"), 0o755))
		require.Contains(t, string(e.infer("a").body), `"model_version":"1"`)
		require.Equal(t, 200, e.loadModel("a").status)
		require.Contains(t, string(e.infer("a").body), `"model_version":"12"`)
	})
}

func TestModelMemory(t *testing.T) {
	t.Run("is held and limited", func(t *testing.T) {
		e := startReady(t, Config{ModelRepository: repository(t, map[string]string{"a": `{"memoryMib":3}`, "b": `{"memoryMib":2}`}), ModelMemoryMiB: 4})
		require.Equal(t, 200, e.loadModel("a").status)
		require.Len(t, e.server.models.models["a"].memory, 3)
		requireError(t, e.loadModel("b"), 400, "needs 2 MiB of memory, and 1 of 4 MiB are free")
		require.Equal(t, 200, e.unloadModel("a").status)
		require.Equal(t, 200, e.loadModel("b").status)
		requireError(t, e.loadModel("a"), 400, "needs 3 MiB of memory, and 2 of 4 MiB are free")
	})
	t.Run("is the size of the files", func(t *testing.T) {
		dir := repository(t, map[string]string{"a": ""})
		require.NoError(t, os.Mkdir(filepath.Join(dir, "a", "3"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "3", "weights"), make([]byte, 1<<20+1), 0o644))
		e := startReady(t, Config{ModelRepository: dir, ModelMemoryMiB: 4})
		require.Equal(t, 200, e.loadModel("a").status)
		require.Equal(t, 2, e.server.models.budget.used)
	})
	t.Run("is never exceeded by concurrent loads", func(t *testing.T) {
		models := map[string]string{}
		for name := range strings.FieldsSeq("a b c d e f g h") {
			models[name] = `{"memoryMib":1}`
		}
		e := startReady(t, Config{ModelRepository: repository(t, models), ModelMemoryMiB: 3, ModelLoadTime: time.Millisecond})
		var loads sync.WaitGroup
		var mu sync.Mutex
		loaded := 0
		for name := range models {
			loads.Go(func() {
				r, err := e.try("POST", "/v2/repository/models/"+name+"/load", "")
				mu.Lock()
				defer mu.Unlock()
				if err == nil && r.status == 200 {
					loaded++
				}
			})
		}
		loads.Wait()
		require.Equal(t, 3, loaded)
		require.Equal(t, 3, e.server.models.budget.used)
	})
}

func TestModelUnload_WaitsForRequestsInFlight(t *testing.T) {
	e := startReady(t, Config{ModelRepository: repository(t, map[string]string{"a": ""}), Concurrency: 1, Queue: 1})
	require.Equal(t, 200, e.loadModel("a").status)
	leave := e.occupy(1)
	var requests sync.WaitGroup
	var answered, unloaded reply
	requests.Go(func() {
		answered, _ = e.try("POST", "/v2/models/a/infer", `{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}]}`)
	})
	e.awaitLoad(1, 1)
	requests.Go(func() { unloaded, _ = e.try("POST", "/v2/repository/models/a/unload", "") })
	e.eventually(func() bool { return e.index()["a"] == "UNLOADING" }, "the model unloads")
	requireError(t, e.infer("a"), 404, "unknown model")
	leave()
	requests.Wait()
	require.Equal(t, 200, answered.status)
	require.Equal(t, 200, unloaded.status)
	require.Equal(t, "UNAVAILABLE", e.index()["a"])
}

func TestModelLoad_Faults(t *testing.T) {
	models := map[string]string{"good": "", "bad": ""}
	t.Run("fail by name", func(t *testing.T) {
		e := startReady(t, Config{ModelRepository: repository(t, models), ModelMemoryMiB: 1, Faults: Faults{FailLoad: "b*"}})
		requireError(t, e.loadModel("bad"), 400, "failed to load 'bad': it fails to load")
		require.Equal(t, 200, e.loadModel("good").status)
		require.Contains(t, string(e.do("POST", "/v2/repository/index", "").body), `"state":"UNAVAILABLE","reason":"fails to load (injected fault)"`)
		require.Zero(t, e.server.models.budget.used)
	})
	t.Run("hang until the fault is cleared, also when the client disconnects", func(t *testing.T) {
		e := startReady(t, Config{ModelRepository: repository(t, models), AllowFaultAPI: true, Faults: Faults{HangLoad: "bad"}})
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v2/repository/models/bad/load", nil)
		require.NoError(t, err)
		gone := make(chan error, 1)
		go func() {
			r, err := e.client.Do(req)
			if err == nil {
				_ = r.Body.Close()
			}
			gone <- err
		}()
		e.eventually(func() bool { return e.index()["bad"] == "LOADING" }, "the model loads")
		leave()
		require.ErrorIs(t, <-gone, context.Canceled)
		require.Equal(t, 200, e.loadModel("good").status, "other models load meanwhile")
		require.Equal(t, "LOADING", e.index()["bad"])
		require.Equal(t, 200, e.do("DELETE", "/faults", "").status)
		e.eventually(func() bool { return e.index()["bad"] == "READY" }, "the model is loaded")
	})
	t.Run("end the server", func(t *testing.T) {
		e := startReady(t, Config{ModelRepository: repository(t, models), Faults: Faults{CrashLoad: "bad", ExitCode: 9}})
		_, err := e.try("POST", "/v2/repository/models/bad/load", "")
		require.Error(t, err)
		var exit *ExitError
		require.ErrorAs(t, e.exit(), &exit)
		require.Equal(t, 9, exit.Code)
	})
	t.Run("are slow", func(t *testing.T) {
		e := startReady(t, Config{ModelRepository: repository(t, models), Faults: Faults{SlowLoad: Duration(20 * time.Millisecond)}})
		began := time.Now()
		require.Equal(t, 200, e.loadModel("good").status)
		require.GreaterOrEqual(t, time.Since(began), 20*time.Millisecond)
	})
	t.Run("report a ready model as not ready, and a failing model as ready", func(t *testing.T) {
		e := startReady(t, Config{ModelRepository: repository(t, models), AllowFaultAPI: true, Faults: Faults{DenyReady: "bad"}})
		require.Equal(t, 200, e.loadModel("bad").status)
		requireError(t, e.do("GET", "/v2/models/bad/ready", ""), 400, "not ready")
		require.Equal(t, 200, e.infer("bad").status)
		require.Equal(t, 200, e.do("POST", "/faults", `{"denyReady":"","falseReady":"*"}`).status)
		require.Equal(t, 200, e.do("GET", "/v2/models/bad/ready", "").status)
		requireError(t, e.infer("bad"), 500, "model 'bad' fails")
		require.Equal(t, 400, e.do("POST", "/faults", `{"failLoad":"["}`).status)
	})
}

func TestAdapters(t *testing.T) {
	load := func(e *endpoint, name, path string) reply {
		return e.do("POST", "/v1/load_lora_adapter", `{"lora_name":"`+name+`","lora_path":"`+path+`"}`)
	}
	unload := func(e *endpoint, name string) reply {
		return e.do("POST", "/v1/unload_lora_adapter", `{"lora_name":"`+name+`"}`)
	}
	complete := func(e *endpoint, name string) reply {
		return e.do("POST", "/v1/completions", `{"model":"`+name+`","prompt":"a"}`)
	}
	t.Run("are models while they are loaded", func(t *testing.T) {
		e := startReady(t, Config{AdapterSlots: 2, AdapterMemoryMiB: 2, ModelMemoryMiB: 4})
		require.Equal(t, 404, complete(e, "sql").status)
		r := load(e, "sql", "org/sql")
		require.Equal(t, "Success: LoRA adapter 'sql' added successfully.", string(r.body))
		r = complete(e, "sql")
		require.Equal(t, 200, r.status)
		require.Equal(t, "sql", parse[clientCompletion](t, r.body).Model)
		require.Contains(t, string(e.do("GET", "/v1/models", "").body), `"id":"sql","object":"model"`)
		require.Contains(t, string(e.do("GET", "/v1/models/sql", "").body), `"root":"org/sql","parent":"echo"`)
		require.Equal(t, 2, e.server.adapters.budget.used)

		r = load(e, "sql", "org/sql")
		require.Equal(t, 400, r.status)
		require.Contains(t, string(r.body), "has already been loaded")
		require.Equal(t, 200, e.do("POST", "/v1/load_lora_adapter", `{"lora_name":"sql","lora_path":"org/other","load_inplace":true}`).status)
		require.Equal(t, 400, load(e, "echo", "x").status, "the model's own name")
		require.Equal(t, 200, load(e, "chat", "x").status)
		r = load(e, "third", "x")
		require.Equal(t, 400, r.status)
		require.Contains(t, string(r.body), "finds no free slot: 2 of 2 are taken")

		require.Equal(t, "Success: LoRA adapter 'sql' removed successfully.", string(unload(e, "sql").body))
		require.Equal(t, 404, complete(e, "sql").status)
		require.Equal(t, 404, unload(e, "sql").status)
		require.Equal(t, 200, load(e, "third", "x").status)
	})
	t.Run("need a name and a path that exists", func(t *testing.T) {
		e := startReady(t, Config{AdapterSlots: 1, AdapterMemoryMiB: 2})
		require.Equal(t, 400, load(e, "", "x").status)
		require.Equal(t, 400, unload(e, "").status)
		require.Equal(t, 404, load(e, "a", filepath.Join(t.TempDir(), "none")).status)
		require.Equal(t, 200, load(e, "a", t.TempDir()).status)
		require.Zero(t, e.server.adapters.budget.used, "an empty folder")
	})
	t.Run("are not loaded without slots", func(t *testing.T) {
		require.Equal(t, 404, load(startReady(t, Config{}), "a", "x").status)
	})
	t.Run("with SGLang's command line have its calls", func(t *testing.T) {
		cfg, _, err := ParseArgs([]string{"python3", "-m", "sglang.launch_server", "--model-path", "m", "--enable-lora", "--max-loaded-loras", "1", "--skip-server-warmup"}, func(string) (string, bool) { return "", false })
		require.NoError(t, err)
		e := startReady(t, cfg)
		call := func(path, name string) reply {
			return e.do("POST", path, `{"lora_name":"`+name+`","lora_path":"org/`+name+`"}`)
		}
		r := call("/load_lora_adapter", "sql")
		require.Equal(t, 200, r.status)
		require.JSONEq(t, `{"success":true,"error_message":"","loaded_adapters":{"sql":"org/sql"}}`, string(r.body))
		require.Contains(t, string(e.do("GET", "/v1/models", "").body), `"id":"sql"`)
		r = call("/load_lora_adapter", "sql")
		require.Equal(t, 400, r.status)
		require.Contains(t, string(r.body), "already exists")
		require.Equal(t, 400, call("/load_lora_adapter", "chat").status, "no free slot")
		require.Equal(t, 200, call("/unload_lora_adapter", "sql").status)
		r = call("/unload_lora_adapter", "sql")
		require.Equal(t, 400, r.status)
		require.Contains(t, string(r.body), "does not exist")
		require.Equal(t, 404, load(e, "sql", "org/sql").status, "vLLM's calls")
	})
	t.Run("with vLLM's command line need its flag and its variable", func(t *testing.T) {
		for want, env := range map[int]map[string]string{200: {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}, 404: {}} {
			cfg, _, err := ParseArgs([]string{"vllm", "serve", "m", "--enable-lora"}, func(name string) (string, bool) {
				v, ok := env[name]
				return v, ok
			})
			require.NoError(t, err)
			e := startReady(t, cfg)
			require.Equal(t, want, load(e, "sql", "org/sql").status)
		}
	})
}

// The race detector needs TestAdapters_LoadAndUnloadAtOnce.
func TestAdapters_LoadAndUnloadAtOnce(t *testing.T) {
	cfg := Config{AdapterSlots: 4}
	cfg.Engine.Aliases = append(make([]string, 0, 8), "other")
	e := startReady(t, cfg)
	var calls sync.WaitGroup
	for i := range 8 {
		calls.Go(func() {
			name := fmt.Sprint("adapter-", i%2)
			for range 20 {
				for path, body := range map[string]string{
					"/v1/load_lora_adapter":   `{"lora_name":"` + name + `","lora_path":"x"}`,
					"/v1/completions":         `{"model":"` + name + `","prompt":"a"}`,
					"/v1/unload_lora_adapter": `{"lora_name":"` + name + `"}`,
				} {
					if _, err := e.try("POST", path, body); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	calls.Wait()
}

// The race detector needs TestModelSet_WaitsForAnUnload.
func TestModelSet_WaitsForAnUnload(t *testing.T) {
	set := newModelSet(&memoryBudget{}, 0)
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for range 200 {
				if err := set.load(t.Context(), hostedModel{name: "a"}, func() error { return nil }); err != nil && !errors.Is(err, errModelLoaded) {
					t.Error(err)
				}
				if err := set.unloadModel(t.Context(), "a"); err != nil && !errors.Is(err, errModelNotLoaded) {
					t.Error(err)
				}
			}
		})
	}
	calls.Wait()
	require.Empty(t, set.list())
}
