package modelserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	route := func(method, path string, handle http.HandlerFunc) {
		mux.HandleFunc(method+" "+path, handle)
	}
	refuseOthers := func(path, allow string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allow)
			(&apiError{
				status: http.StatusMethodNotAllowed, kind: "invalid_request_error", code: "method_not_allowed",
				message: fmt.Sprintf("%s takes %s, not %s", path, allow, r.Method),
			}).write(w)
		})
	}
	route("POST", "/v1/chat/completions", s.handleChat)
	refuseOthers("/v1/chat/completions", "POST")
	route("POST", "/v1/completions", s.handleCompletions)
	refuseOthers("/v1/completions", "POST")
	route("GET", "/v1/models", s.handleModels)
	refuseOthers("/v1/models", "GET")
	route("GET", "/v1/models/{model...}", s.handleModel)
	route("GET", "/health", s.handleHealth)
	refuseOthers("/health", "GET")
	route("GET", "/metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP)
	refuseOthers("/metrics", "GET")
	if s.cfg.AllowFaultAPI {
		route("GET", "/faults", s.handleGetFaults)
		route("POST", "/faults", s.handleSetFaults)
		route("DELETE", "/faults", s.handleClearFaults)
		refuseOthers("/faults", "GET, POST, DELETE")
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		(&apiError{
			status: http.StatusNotFound, kind: "invalid_request_error", code: "not_found",
			message: fmt.Sprintf("there is no %s %s here", r.Method, r.URL.Path),
		}).write(w)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Model-Version", s.cfg.VersionLabel)
		mux.ServeHTTP(w, r)
	})
}

// hang blocks while the fault says so and reports whether the request must go
// unanswered: its context ended first.
func (s *Server) hang(ctx context.Context) bool {
	for {
		faults, _, changed := s.faults.get()
		if !faults.Hang {
			return false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return true
		}
	}
}

func (s *Server) handleHealth(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer cancel()
	if s.hang(ctx) {
		panic(http.ErrAbortHandler)
	}
	status, code := "ok", http.StatusOK
	faults, setAt, _ := s.faults.get()
	switch {
	case s.draining.Load():
		status = "draining"
	case !s.ready():
		status = "loading"
	case faults.healthFails(time.Since(setAt)):
		status = "failing (injected fault)"
	}
	if status != "ok" {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, map[string]string{"status": status})
}

type modelObject struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len"`
}

func (s *Server) model() modelObject {
	return modelObject{ID: s.cfg.Model, Object: "model", Created: s.started.Unix(), OwnedBy: "windlass", MaxModelLen: s.cfg.MaxModelLen}
}

func (s *Server) handleModels(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{"list", []modelObject{s.model()}})
}

func (s *Server) handleModel(w http.ResponseWriter, r *http.Request) {
	if asked := r.PathValue("model"); asked != s.cfg.Model {
		modelNotFound(asked, s.cfg.Model).write(w)
		return
	}
	writeJSON(w, http.StatusOK, s.model())
}

func (s *Server) handleGetFaults(w http.ResponseWriter, _ *http.Request) {
	faults, _, _ := s.faults.get()
	writeJSON(w, http.StatusOK, faults)
}

// handleSetFaults changes the faults that the body names and keeps the others.
func (s *Server) handleSetFaults(w http.ResponseWriter, r *http.Request) {
	var body json.RawMessage
	if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &body); problem != nil {
		problem.write(w)
		return
	}
	s.changeFaults(w, func(f *Faults) error { return decodeStrict(body, f) })
}

func (s *Server) handleClearFaults(w http.ResponseWriter, _ *http.Request) {
	s.changeFaults(w, func(f *Faults) error {
		*f = Faults{}
		return nil
	})
}

func (s *Server) changeFaults(w http.ResponseWriter, change func(*Faults) error) {
	faults, err := s.faults.update(time.Now(), change)
	if err != nil {
		badRequest("", "%v", err).write(w)
		return
	}
	s.log.Warn("faults changed", "faults", faults)
	writeJSON(w, http.StatusOK, faults)
}
