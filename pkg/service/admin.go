package service

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// adminDrain is the time for running scrapes to finish.
const adminDrain = 2 * time.Second

// AdminConfig configures the server for operators and probes. It has a separate listener, so that it can stay
// private, and so that many API calls do not delay probes and scrapes.
type AdminConfig struct {
	// Listen is host:port. Port 0 picks a free one, which is logged.
	Listen string
	// Listener is used instead of Listen when it is set.
	Listener net.Listener
	// Registry is served at /metrics. If it is nil, the page does not exist.
	Registry prometheus.Gatherer
	// Health is served at /healthz and /readyz. If it is nil, the program is always healthy.
	Health *Health
	// Pprof serves /debug/pprof. It shows memory and stacks, so the listener must be private.
	Pprof bool
	// TLS is the listener's TLS configuration. It may be nil.
	TLS *tls.Config
	// TokenFile has the bearer token for /metrics and /debug/pprof. It is read for each request. Empty means that
	// no token is needed.
	TokenFile string
	// Log receives the address. It may be nil.
	Log *slog.Logger
}

// AdminServer returns the component that serves /metrics, /healthz, /readyz and, with Pprof, /debug/pprof.
func AdminServer(cfg AdminConfig) Component {
	return Component{Name: "admin", Run: func(ctx context.Context) error {
		listener := cfg.Listener
		if listener == nil {
			var err error
			var listen net.ListenConfig
			if listener, err = listen.Listen(ctx, "tcp", cfg.Listen); err != nil {
				return fmt.Errorf("listen for metrics and health on %q: %w", cfg.Listen, err)
			}
		}
		if cfg.Log != nil {
			cfg.Log.Info("serving metrics and health", "address", listener.Addr().String())
		}
		server := &http.Server{
			Handler:           adminMux(cfg),
			TLSConfig:         cfg.TLS.Clone(), // the server adds its protocols
			ReadHeaderTimeout: 5 * time.Second,
			IdleTimeout:       time.Minute,
			// A WriteTimeout would cut long CPU profiles. Requests end with ctx instead.
			BaseContext: func(net.Listener) context.Context { return ctx },
		}
		served := make(chan error, 1)
		go func() {
			if cfg.TLS != nil {
				served <- server.ServeTLS(listener, "", "")
				return
			}
			served <- server.Serve(listener)
		}()
		select {
		case err := <-served:
			return fmt.Errorf("serve metrics and health: %w", err)
		case <-ctx.Done():
		}
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminDrain)
		defer cancel()
		if err := server.Shutdown(drain); errors.Is(err, context.DeadlineExceeded) {
			return server.Close()
		} else if err != nil {
			return fmt.Errorf("stop metrics and health: %w", err)
		}
		return nil
	}}
}

func adminMux(cfg AdminConfig) *http.ServeMux {
	health := cfg.Health
	if health == nil {
		health = &Health{}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", health.LiveHandler())
	mux.Handle("GET /readyz", health.ReadyHandler())
	if cfg.Registry != nil {
		mux.Handle("GET /metrics", requireToken(cfg, promhttp.HandlerFor(cfg.Registry, promhttp.HandlerOpts{
			EnableOpenMetrics: true,
			// Usually one scrape runs at a time. More mean that a client reads slowly.
			MaxRequestsInFlight: 4,
		})))
	}
	if cfg.Pprof {
		profiles := http.NewServeMux()
		profiles.HandleFunc("/debug/pprof/", pprof.Index)
		profiles.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		profiles.HandleFunc("/debug/pprof/profile", pprof.Profile)
		profiles.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		profiles.HandleFunc("/debug/pprof/trace", pprof.Trace)
		mux.Handle("/debug/pprof/", requireToken(cfg, profiles))
	}
	return mux
}

// requireToken requires the token. While the token file cannot be read, it refuses every request.
func requireToken(cfg AdminConfig, next http.Handler) http.Handler {
	if cfg.TokenFile == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(cfg.TokenFile)
		token := bytes.TrimSpace(data)
		if err != nil || len(token) == 0 {
			if cfg.Log != nil {
				cfg.Log.ErrorContext(r.Context(), "the token for metrics cannot be read", "file", cfg.TokenFile, "error", err)
			}
			http.Error(w, "the token for this page cannot be read: see the log", http.StatusServiceUnavailable)
			return
		}
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(given), token) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "this page needs the bearer token of --metrics-token-file", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
