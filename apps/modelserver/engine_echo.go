package modelserver

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// echo is the server with its own command line. Its metrics have vLLM's names, so that dashboards, alerts and
// autoscalers for vLLM work unchanged.
var echo = engine{
	name:            "echo",
	statusQueueFull: http.StatusTooManyRequests,
	ownedBy:         "windlass",
	errorBody:       func(e *apiError) any { return e.openAIErrorBody() },
	metrics:         newEchoMetrics,
	routes: func(s *Server, route func(method, path string, handle http.HandlerFunc)) {
		route("GET", "/health", s.handleHealth)
		route("GET", "/metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}).ServeHTTP)
		adapterRoutes(s, route)
		if s.cfg.ModelRepository != "" {
			inferenceRoutes(s, route)
		}
	},
}
