package loader

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/models"
)

// engine is a server of both protocols.
type engine struct {
	*httptest.Server
	mu       sync.Mutex
	states   map[string]string
	adapters map[string]string
	// unready and fail are by model. lie is whether loads of adapters have no effect.
	unready map[string]bool
	fail    map[string]string
	lie     bool
}

func newEngine(t *testing.T) (*engine, *Loader, models.Server) {
	e := &engine{states: map[string]string{}, adapters: map[string]string{}, unready: map[string]bool{}, fail: map[string]string{}}
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
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(e.Close)
	l := &Loader{Client: e.Client()}
	return e, l, models.Server{ID: "ins_1", Address: strings.TrimPrefix(e.URL, "http://"), Protocol: models.V2}
}

func TestLoader_V2(t *testing.T) {
	e, l, s := newEngine(t)
	e.states["other"] = "UNAVAILABLE"
	fraud := models.Model{ID: "mv_1", Name: "fraud"}
	require.NoError(t, l.Load(t.Context(), s, fraud))
	held, err := l.Held(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, []models.Held{{Name: "fraud", Ready: true}}, held)
	e.unready["fraud"] = true
	held, err = l.Held(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, []models.Held{{Name: "fraud"}}, held)
	require.NoError(t, l.Unload(t.Context(), s, fraud))
	require.NoError(t, l.Unload(t.Context(), s, fraud), "a model that is gone")
	held, err = l.Held(t.Context(), s)
	require.NoError(t, err)
	require.Empty(t, held)

	e.fail["fraud"] = "failed to load 'fraud': it needs 2 MiB of memory"
	require.EqualError(t, l.Load(t.Context(), s, fraud), "the server did not load it: 400 Bad Request: failed to load 'fraud': it needs 2 MiB of memory")
	ctx, cancel := context.WithTimeout(t.Context(), 3*pause)
	defer cancel()
	slow := models.Model{Name: "slow"}
	e.unready["slow"] = true
	require.EqualError(t, l.Load(ctx, s, slow), "the server has loaded it, and says that it is not ready")
}

func TestLoader_Adapters(t *testing.T) {
	e, l, s := newEngine(t)
	s.Protocol = models.LoRA
	sql := models.Model{Name: "sql", Path: "org/sql"}
	require.NoError(t, l.Load(t.Context(), s, sql))
	require.Equal(t, "org/sql", e.adapters["sql"])
	require.NoError(t, l.Load(t.Context(), s, sql), "an adapter that is there")
	held, err := l.Held(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, []models.Held{{Name: "sql", Ready: true}}, held, "the base model is no adapter")
	require.NoError(t, l.Unload(t.Context(), s, sql))
	require.NoError(t, l.Unload(t.Context(), s, sql))
	require.ErrorContains(t, l.Load(t.Context(), s, models.Model{Name: "sql"}), "needs model.path")
	e.lie = true
	ctx, cancel := context.WithTimeout(t.Context(), 3*pause)
	defer cancel()
	require.EqualError(t, l.Load(ctx, s, sql), "the server has loaded it, and does not list it")
}

func TestLoader_ReadyTakesTurns(t *testing.T) {
	l := &Loader{}
	items := make([]int, 150)
	for i := range items {
		items[i] = i
	}
	seen := map[int]int{}
	for range 3 {
		turn := l.turn("s", items)
		require.Len(t, turn, readyEach)
		for _, i := range turn {
			seen[i]++
		}
	}
	require.Len(t, seen, 150)
	require.Len(t, l.turn("s", items[:5]), 5)
}
