package loader

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/models"
)

// engine is a server that speaks both protocols.
type engine struct {
	*httptest.Server
	mu       sync.Mutex
	states   map[string]string
	adapters map[string]string
	// unready and fail are by model. lie means that loads of adapters have no effect.
	unready map[string]bool
	fail    map[string]string
	// silent has the models about which the server gives no answer: it closes the connection.
	silent map[string]bool
	lie    bool
}

func newEngine(t *testing.T) (*engine, *Loader, models.Server) {
	e := &engine{states: map[string]string{}, adapters: map[string]string{}, unready: map[string]bool{}, silent: map[string]bool{}, fail: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v2/repository/index", func(w http.ResponseWriter, _ *http.Request) {
		var index []map[string]string
		for name, state := range e.states {
			index = append(index, map[string]string{"name": name, "state": state})
		}
		_ = json.NewEncoder(w).Encode(index)
	})
	mux.HandleFunc("POST /v2/repository/models/{name}/load", func(w http.ResponseWriter, r *http.Request) {
		if text := e.fail[r.PathValue("name")]; text != "" {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
			return
		}
		e.states[r.PathValue("name")] = "READY"
	})
	mux.HandleFunc("POST /v2/repository/models/{name}/unload", func(_ http.ResponseWriter, r *http.Request) { e.states[r.PathValue("name")] = "UNAVAILABLE" })
	mux.HandleFunc("GET /v2/models/{name}/ready", func(w http.ResponseWriter, r *http.Request) {
		if e.silent[r.PathValue("name")] {
			panic(http.ErrAbortHandler)
		}
		if e.states[r.PathValue("name")] != "READY" || e.unready[r.PathValue("name")] {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		data := []map[string]string{{"id": "base"}}
		for name := range e.adapters {
			data = append(data, map[string]string{"id": name, "parent": "base"})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
	})
	mux.HandleFunc("POST /v1/load_lora_adapter", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]string
		_ = json.NewDecoder(r.Body).Decode(&body)
		if _, ok := e.adapters[body["lora_name"]]; ok {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"The lora adapter has already been loaded."}}`)
			return
		}
		if !e.lie {
			e.adapters[body["lora_name"]] = body["lora_path"]
		}
	})
	mux.HandleFunc("POST /v1/unload_lora_adapter", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]string
		_ = json.NewDecoder(r.Body).Decode(&body)
		if _, ok := e.adapters[body["lora_name"]]; !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		delete(e.adapters, body["lora_name"])
	})
	e.addSGLang(mux)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(e.Close)
	l := &Loader{Client: e.Client()}
	return e, l, models.Server{ID: "ins_1", Address: strings.TrimPrefix(e.URL, "http://"), Protocol: models.V2}
}

// addSGLang adds SGLang's calls for adapters.
func (e *engine) addSGLang(mux *http.ServeMux) {
	answer := func(w http.ResponseWriter, problem string) {
		if problem != "" {
			w.WriteHeader(http.StatusBadRequest)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"success": problem == "", "error_message": problem, "loaded_adapters": e.adapters})
	}
	mux.HandleFunc("POST /load_lora_adapter", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]string
		_ = json.NewDecoder(r.Body).Decode(&body)
		name := body["lora_name"]
		switch _, ok := e.adapters[name]; {
		case ok:
			answer(w, "LoRA with name "+name+" already exists. Loaded LoRAs: ...")
		case e.fail[name] != "":
			answer(w, e.fail[name])
		default:
			e.adapters[name] = body["lora_path"]
			answer(w, "")
		}
	})
	mux.HandleFunc("POST /unload_lora_adapter", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]string
		_ = json.NewDecoder(r.Body).Decode(&body)
		if _, ok := e.adapters[body["lora_name"]]; !ok {
			answer(w, "LoRA with name "+body["lora_name"]+" does not exist. Loaded LoRAs: ...")
			return
		}
		delete(e.adapters, body["lora_name"])
		answer(w, "")
	})
}

func TestLoader_SGLangAdapters(t *testing.T) {
	e, l, s := newEngine(t)
	s.Protocol = models.SGLang
	sql := models.Model{Name: "sql", Path: "org/sql"}
	e.adapters["sql"] = "org/old"
	require.NoError(t, l.Load(t.Context(), s, sql))
	require.Equal(t, "org/sql", e.adapters["sql"], "an adapter of the same name is replaced")
	held, err := l.Held(t.Context(), s, nil)
	require.NoError(t, err)
	require.Equal(t, []models.Held{{Name: "sql", Checked: true, Ready: true}}, held)
	require.NoError(t, l.Unload(t.Context(), s, sql))
	require.NoError(t, l.Unload(t.Context(), s, sql), "unload of an adapter that is gone")
	e.fail["sql"] = "rank 64 is above the maximum"
	require.EqualError(t, l.Load(t.Context(), s, sql), "the server did not load the adapter: 400 Bad Request: rank 64 is above the maximum")
}

func TestLoader_V2(t *testing.T) {
	e, l, s := newEngine(t)
	e.states["other"] = "UNAVAILABLE"
	fraud := models.Model{ID: "mv_1", Name: "fraud"}
	require.NoError(t, l.Load(t.Context(), s, fraud))
	held, err := l.Held(t.Context(), s, nil)
	require.NoError(t, err)
	require.Equal(t, []models.Held{{Name: "fraud", Checked: true, Ready: true}}, held)
	e.unready["fraud"] = true
	held, err = l.Held(t.Context(), s, nil)
	require.NoError(t, err)
	require.Equal(t, []models.Held{{Name: "fraud", Checked: true}}, held)
	require.NoError(t, l.Unload(t.Context(), s, fraud))
	require.NoError(t, l.Unload(t.Context(), s, fraud), "unload of a model that is gone")
	held, err = l.Held(t.Context(), s, nil)
	require.NoError(t, err)
	require.Empty(t, held)

	e.fail["fraud"] = "failed to load 'fraud': it needs 2 MiB of memory"
	err = l.Load(t.Context(), s, fraud)
	require.ErrorIs(t, err, models.ErrRefused)
	require.EqualError(t, err, "the server did not load the model: 400 Bad Request: failed to load 'fraud': it needs 2 MiB of memory")
	ctx, cancel := context.WithTimeout(t.Context(), 3*pause)
	defer cancel()
	slow := models.Model{Name: "slow"}
	e.unready["slow"] = true
	err = l.Load(ctx, s, slow)
	require.EqualError(t, err, "the server has loaded the model, and says that the model is not ready")
	require.ErrorIs(t, err, models.ErrNotDone)
}

func TestLoader_Adapters(t *testing.T) {
	e, l, s := newEngine(t)
	s.Protocol = models.LoRA
	sql := models.Model{Name: "sql", Path: "org/sql"}
	require.NoError(t, l.Load(t.Context(), s, sql))
	require.Equal(t, "org/sql", e.adapters["sql"])
	require.NoError(t, l.Load(t.Context(), s, sql), "load of an adapter that exists")
	held, err := l.Held(t.Context(), s, nil)
	require.NoError(t, err)
	require.Equal(t, []models.Held{{Name: "sql", Checked: true, Ready: true}}, held, "the base model is not an adapter")
	require.NoError(t, l.Unload(t.Context(), s, sql))
	require.NoError(t, l.Unload(t.Context(), s, sql))
	require.ErrorContains(t, l.Load(t.Context(), s, models.Model{Name: "sql"}), "needs model.path")
	e.lie = true
	ctx, cancel := context.WithTimeout(t.Context(), 3*pause)
	defer cancel()
	require.EqualError(t, l.Load(ctx, s, sql), "the server has loaded the adapter, and does not list it")
}

func TestLoader_ChecksSomeModelsAtATime(t *testing.T) {
	const all = 150
	e, l, s := newEngine(t)
	for i := range all {
		e.states[fmt.Sprint("m", i)] = "READY"
	}
	ask := func(first ...string) map[string]bool {
		held, err := l.Held(t.Context(), s, first)
		require.NoError(t, err)
		require.Len(t, held, all)
		checked := map[string]bool{}
		for _, h := range held {
			require.Equal(t, h.Checked, h.Ready, "only a model that was checked is ready")
			if h.Checked {
				checked[h.Name] = true
			}
		}
		require.Len(t, checked, readyEach)
		return checked
	}
	seen := map[string]bool{}
	for range 3 {
		maps.Copy(seen, ask())
	}
	require.Len(t, seen, all, "each model gets its turn")
	for i := range all {
		name := fmt.Sprint("m", i)
		require.True(t, ask(name)[name], "a model in first is checked in the next call")
	}
	s.Incarnation = "2"
	clear(seen)
	for range 3 {
		maps.Copy(seen, ask())
	}
	require.Len(t, seen, all)
}

func TestLoader_ForgetsChecksOfModelsThatAreGone(t *testing.T) {
	e, l, s := newEngine(t)
	for i := range 3 {
		e.states = map[string]string{fmt.Sprint("m", i): "READY"}
		_, err := l.Held(t.Context(), s, nil)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"m2"}, slices.Collect(maps.Keys(l.checks[s.ID].at)))
}

func TestLoader_SilentServerSaysNothingAboutAModel(t *testing.T) {
	e, l, s := newEngine(t)
	e.states["fraud"] = "READY"
	e.silent["fraud"] = true
	held, err := l.Held(t.Context(), s, nil)
	require.NoError(t, err)
	require.Equal(t, []models.Held{{Name: "fraud"}}, held)
}

// deadAfterLoad is a server that takes a load, and takes no connection after that.
type deadAfterLoad struct{}

func (deadAfterLoad) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "load") {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

func TestLoader_ServerThatEndsAfterItTookALoadWasReached(t *testing.T) {
	l := &Loader{Client: &http.Client{Transport: deadAfterLoad{}}}
	for _, protocol := range []models.Protocol{models.V2, models.LoRA} {
		s := models.Server{ID: "ins_1", Address: "127.0.0.1:1", Protocol: protocol}
		err := l.Load(t.Context(), s, models.Model{Name: "fraud", Path: "org/fraud"})
		require.ErrorContains(t, err, "connection refused")
		var op *net.OpError
		require.NotErrorAs(t, err, &op, "the manager blames no model for a load that met no connection")
		_, err = l.Held(t.Context(), s, nil)
		require.ErrorAs(t, err, &op)
	}
}

func TestLoader_ReplacesAnAdapterOfTheSameName(t *testing.T) {
	e, l, s := newEngine(t)
	s.Protocol = models.LoRA
	e.adapters["sql"] = "org/old"
	require.NoError(t, l.Load(t.Context(), s, models.Model{Name: "sql", Path: "org/new"}))
	require.Equal(t, "org/new", e.adapters["sql"])
}

func TestLoader_BoundsAnswers(t *testing.T) {
	var status, size int
	var read atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		for range size >> 10 {
			n, err := w.Write(make([]byte, 1<<10))
			if err != nil {
				return
			}
			read.Add(int64(n))
		}
	}))
	t.Cleanup(server.Close)
	l := &Loader{Client: server.Client()}
	s := models.Server{ID: "ins_1", Address: strings.TrimPrefix(server.URL, "http://"), Protocol: models.V2}
	for name, c := range map[string]struct {
		status, size int
		want         string
	}{
		"list":   {http.StatusOK, 2 * maxList, "its answer to /v2/repository/index has more than 8388608 bytes"},
		"answer": {http.StatusOK, 2 * maxAnswer, "the server did not load the model: its answer to /v2/repository/models/fraud/load has more than 65536 bytes"},
		"error":  {http.StatusBadRequest, 64 << 20, "400 Bad Request"},
	} {
		t.Run(name, func(t *testing.T) {
			status, size = c.status, c.size
			read.Store(0)
			var err error
			if name == "list" {
				_, err = l.Held(t.Context(), s, nil)
			} else {
				err = l.Load(t.Context(), s, models.Model{Name: "fraud"})
			}
			require.ErrorContains(t, err, c.want)
			require.Less(t, len(err.Error()), maxAnswer+1024, "the caller blanks secrets first, and then cuts the text")
			require.Less(t, read.Load(), int64(32<<20), "the rest of the answer is not read")
		})
	}
}

func TestLoader_GivesUpAServerThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Loader{Client: &http.Client{Transport: silentServer{}}}
		began := time.Now()
		_, err := l.Held(t.Context(), models.Server{ID: "ins_1", Protocol: models.LoRA}, nil)
		require.EqualError(t, err, "the server did not answer /v1/models within 10s")
		require.Equal(t, questionTimeout, time.Since(began))
		began = time.Now()
		require.Error(t, l.Unload(t.Context(), models.Server{ID: "ins_1", Protocol: models.V2}, models.Model{Name: "fraud"}))
		require.Equal(t, unloadTimeout, time.Since(began))
	})
}

// silentServer never answers.
type silentServer struct{}

func (silentServer) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestHeld_IsBounded(t *testing.T) {
	var list string
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, list) }))
	t.Cleanup(engine.Close)
	l := &Loader{Client: engine.Client()}
	held := func(protocol models.Protocol) ([]models.Held, error) {
		return l.Held(t.Context(), models.Server{ID: "s", Address: engine.Listener.Addr().String(), Protocol: protocol}, nil)
	}
	long := strings.Repeat("x", 300)
	many := func(element string) string { return "[" + strings.Repeat(element+",", 20_000) + element + "]" }
	list = many(`{}`)
	_, err := held(models.V2)
	require.ErrorContains(t, err, "more than 20000 models")
	list = `{"data": ` + many(`{}`) + `}`
	_, err = held(models.LoRA)
	require.ErrorContains(t, err, "more than 20000 models")

	for _, names := range []struct{ count, length int }{{10_001, 5}, {5_000, 200}} {
		var index []map[string]string
		for n := range names.count {
			index = append(index, map[string]string{"name": fmt.Sprintf("%0*d", names.length, n), "state": "LOADING"})
		}
		text, _ := json.Marshal(index)
		list = string(text)
		_, err = held(models.V2)
		require.ErrorContains(t, err, "the server says that it has more than")
	}

	list = `[{"name": "` + long + `", "state": "LOADING"}, {"name": "a", "state": "LOADING"}, {"name": "b", "state": "UNAVAILABLE"}]`
	got, err := held(models.V2)
	require.NoError(t, err)
	require.Equal(t, []models.Held{{Name: "a", Checked: true, Loading: true}}, got)
	list = `{"data": [{"id": "` + long + `", "parent": "base"}, {"id": "a", "parent": "base"}]}`
	got, err = held(models.LoRA)
	require.NoError(t, err)
	require.Equal(t, []models.Held{{Name: "a", Checked: true, Ready: true}}, got)

	for _, list = range []string{`null`, `[]`} {
		got, err = held(models.V2)
		require.NoError(t, err, list)
		require.Empty(t, got)
	}
	for _, list = range []string{`{}`, `[1]`, `[{}`, `"`, ``} {
		_, err = held(models.V2)
		require.ErrorContains(t, err, "index of models", list)
	}
}
