package modelserver

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rs/cors"
)

func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	allowed := map[string][]string{}
	route := func(method, path string, handle http.HandlerFunc) {
		mux.HandleFunc(method+" "+path, handle)
		allowed[path] = append(allowed[path], method)
	}
	if s.part != nil && s.part.role == RoleRouter {
		route("POST", "/v1/chat/completions", s.forwardToDecode)
		route("POST", "/v1/completions", s.forwardToDecode)
	} else {
		route("POST", "/v1/chat/completions", s.handleChat)
		route("POST", "/v1/completions", s.handleCompletions)
	}
	if s.part != nil && s.part.role == RolePrefill {
		route("POST", prefillPath, s.handlePrefill)
	}
	route("GET", "/v1/models", s.handleModels)
	route("GET", "/v1/models/{model...}", s.handleModel)
	s.engine.routes(s, route)
	if s.cfg.AllowFaultAPI {
		route("GET", "/faults", s.handleGetFaults)
		route("POST", "/faults", s.handleSetFaults)
		route("DELETE", "/faults", s.handleClearFaults)
	}
	for path, methods := range allowed {
		if strings.Contains(path, "{") {
			continue
		}
		allow := strings.Join(methods, ", ")
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allow)
			s.writeError(w, &apiError{
				status: http.StatusMethodNotAllowed, kind: "invalid_request_error", code: codeMethodNotAllowed,
				message: fmt.Sprintf("%s takes %s, not %s", path, allow, r.Method),
			})
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.writeError(w, &apiError{
			status: http.StatusNotFound, kind: "invalid_request_error", code: codeNotFound,
			message: fmt.Sprintf("there is no endpoint %s %s", r.Method, r.URL.Path),
		})
	})
	// Pages of any origin may use the server, as is the default of vLLM and SGLang.
	pages := cors.New(cors.Options{AllowedOrigins: []string{"*"}, AllowedMethods: []string{"GET", "POST", "DELETE"}, AllowedHeaders: []string{"*"}})
	return pages.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Model-Version", s.cfg.VersionLabel)
		if n := s.starts.Load(); n > 0 {
			w.Header().Set("X-Model-Slot-Starts", strconv.FormatInt(n, 10))
		}
		if s.part != nil {
			s.part.setHeaders(w.Header())
		}
		r = s.withoutRootPath(r)
		if !s.isAuthorized(r) {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// withoutRootPath removes RootPath from the request's path, because some proxies do not remove it.
func (s *Server) withoutRootPath(r *http.Request) *http.Request {
	root := strings.TrimSuffix(s.cfg.Engine.RootPath, "/")
	rest, ok := strings.CutPrefix(r.URL.Path, root)
	if root == "" || !ok || !strings.HasPrefix(rest, "/") {
		return r
	}
	stripped := r.Clone(r.Context())
	stripped.URL.Path, stripped.URL.RawPath = rest, ""
	return stripped
}

// isAuthorized reports whether a request has one of the API keys or needs none.
func (s *Server) isAuthorized(r *http.Request) bool {
	if len(s.cfg.Engine.APIKeys) == 0 || r.Method == http.MethodOptions || s.engine.guards == nil || !s.engine.guards(r.URL.Path) {
		return true
	}
	for _, key := range s.cfg.Engine.APIKeys {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+key)) == 1 {
			return true
		}
	}
	return false
}

// blockWhileHung blocks while the fault Hang is set. It reports whether ctx ended first. If so, the request must get no
// answer.
func (s *Server) blockWhileHung(ctx context.Context) bool {
	for {
		faults, _, changed := s.faults.currentFaults()
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
	status := s.healthStatus(r)
	code := http.StatusOK
	if status != healthy {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, map[string]string{"status": status})
}

// handleBareHealth answers without a body.
func (s *Server) handleBareHealth(w http.ResponseWriter, r *http.Request) {
	if s.healthStatus(r) != healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

const healthy = "ok"

// healthStatus returns the status for a health check.
func (s *Server) healthStatus(r *http.Request) string {
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer cancel()
	if s.blockWhileHung(ctx) {
		panic(http.ErrAbortHandler)
	}
	faults, setAt, _ := s.faults.currentFaults()
	switch {
	case s.draining.Load():
		return "draining"
	case !s.isReady() || !s.warm.Load():
		return "loading"
	case faults.healthFails(time.Since(setAt)):
		return "failing (injected fault)"
	}
	return healthy
}

type modelObject struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root,omitempty"`
	Parent      string `json:"parent,omitempty"`
	MaxModelLen int    `json:"max_model_len"`
}

func (s *Server) describeModel(name string) modelObject {
	if a, ok := s.adapters.readyModel(name); ok {
		return modelObject{ID: name, Object: "model", Created: s.started.Unix(), OwnedBy: s.engine.ownedBy, Root: a.source, Parent: s.cfg.Model, MaxModelLen: s.cfg.MaxModelLen}
	}
	return modelObject{ID: name, Object: "model", Created: s.started.Unix(), OwnedBy: s.engine.ownedBy, Root: s.cfg.Engine.ModelPath, MaxModelLen: s.cfg.MaxModelLen}
}

func (s *Server) handleModels(w http.ResponseWriter, _ *http.Request) {
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{Object: "list"}
	for _, name := range s.modelNames() {
		list.Data = append(list.Data, s.describeModel(name))
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) handleModel(w http.ResponseWriter, r *http.Request) {
	asked := r.PathValue("model")
	if problem := s.checkModel(asked); problem != nil {
		s.writeError(w, problem)
		return
	}
	writeJSON(w, http.StatusOK, s.describeModel(asked))
}

func (s *Server) handleGetFaults(w http.ResponseWriter, _ *http.Request) {
	faults, _, _ := s.faults.currentFaults()
	writeJSON(w, http.StatusOK, faults)
}

// handleSetFaults changes the faults that the body names, and keeps the other faults.
func (s *Server) handleSetFaults(w http.ResponseWriter, r *http.Request) {
	var body json.RawMessage
	if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &body); problem != nil {
		s.writeError(w, problem)
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
	faults, err := s.faults.changeFaults(time.Now(), change)
	if err != nil {
		s.writeError(w, badRequest("", "%v", err))
		return
	}
	s.log.Warn("faults changed", "faults", faults)
	writeJSON(w, http.StatusOK, faults)
}
