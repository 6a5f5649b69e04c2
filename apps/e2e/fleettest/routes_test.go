package fleettest

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// servedRoutes are the routes that the agents on one disk serve, according to their logs.
type servedRoutes struct {
	mu   sync.Mutex
	apps map[string]servedRoute
}

type servedRoute struct {
	epoch, generation int64
	weights           map[string]int32
}

func (s *servedRoutes) clone() *servedRoutes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &servedRoutes{apps: maps.Clone(s.apps)}
}

// targets returns the deployments that have a share of the traffic, by app.
func (s *servedRoutes) targets() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string][]string{}
	for app, route := range s.apps {
		for _, deployment := range slices.Sorted(maps.Keys(route.weights)) {
			if route.weights[deployment] > 0 {
				out[app] = append(out[app], deployment)
			}
		}
	}
	return out
}

// note stores the route of a record, if it has the highest (epoch, generation).
func (s *servedRoutes) note(record slog.Record) {
	var app string
	var route servedRoute
	record.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "app":
			app = a.Value.String()
		case "epoch":
			route.epoch = a.Value.Int64()
		case "generation":
			route.generation = a.Value.Int64()
		case "weights":
			route.weights, _ = a.Value.Any().(map[string]int32)
		}
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.apps[app]
	if route.epoch > was.epoch || route.epoch == was.epoch && route.generation >= was.generation {
		s.apps[app] = route
	}
}

// routesLog stores the routes that an agent logs, and passes all records on.
type routesLog struct {
	slog.Handler
	served *servedRoutes
}

func (h routesLog) Enabled(context.Context, slog.Level) bool { return true }

func (h routesLog) Handle(ctx context.Context, record slog.Record) error {
	if record.Message == "serving routes" {
		h.served.note(record)
	}
	if !h.Handler.Enabled(ctx, record.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, record)
}

func (h routesLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return routesLog{h.Handler.WithAttrs(attrs), h.served}
}

func (h routesLog) WithGroup(name string) slog.Handler {
	return routesLog{h.Handler.WithGroup(name), h.served}
}
