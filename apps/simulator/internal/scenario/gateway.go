package scenario

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/proxies"
)

// Gateway sends the same load through the gateway and through well-known proxies. They take turns in each
// round, so that other work of the machine affects all of them. Each figure is the median of the rounds.
// Ratios compare a proxy with the last peer in the same round. Latency is measured twice: when each proxy
// gets as many requests as it can answer, and when all get half of what the slowest can answer.
//
// What limits it: system calls, and the kernel's work in them. A request needs four system calls (five if it
// cannot be sent again), and an event needs two. p99 shows which process must wait for a core. Requests that
// the gateway's engine leaves to net/http are limited by net/http, which has two goroutines for each
// connection to an instance and an allocation for each header.
type Gateway struct {
	Window      time.Duration `help:"Duration of each measurement." default:"5s"`
	Rounds      int           `help:"Number of measurements of each proxy under each load." default:"3"`
	Connections int           `help:"Connections with requests that are answered at once." default:"64"`
	Streams     int           `help:"Streams at a time." default:"32"`
	Events      int           `help:"Events of a stream." default:"100"`
	Peers       []string      `help:"Proxies to compare with: net (the gateway without its engine), bare (only net/http), fasthttp, hertz, nginx and haproxy. Ratios are relative to the last one." default:"bare,nginx,haproxy"`
	Libraries   string        `help:"Program of .ci/peers, which runs as fasthttp or hertz. .ci/bench peers builds it." type:"path"`
}

// Deadline implements Scenario.
func (s *Gateway) Deadline() time.Duration {
	return 2*time.Minute + 4*time.Duration(s.Rounds)*time.Duration(1+len(s.Peers))*s.Window
}

// Run implements Scenario.
func (s *Gateway) Run(ctx context.Context, env Env) (err error) {
	err = requirePositive("--window", s.Window, "--rounds", s.Rounds, "--connections", s.Connections, "--streams", s.Streams, "--events", s.Events, "--peers", len(s.Peers))
	if err != nil {
		return err
	}
	if err := proxies.Missing(s.Peers, s.Libraries); err != nil {
		return err
	}
	env.recordSizes("window", s.Window.String(), "rounds", s.Rounds, "connections", s.Connections, "streams", s.Streams, "events", s.Events)
	dir, err := os.MkdirTemp("", "windlass-gateway-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	harness, err := proxies.Open(ctx, dir, env.Self, s.Libraries, s.Events)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, harness.Close()) }()
	names := append([]string{"gateway"}, s.Peers...)
	all := map[string]*rounds{}
	for _, name := range names {
		p, err := harness.Start(ctx, name)
		if err != nil {
			return err
		}
		all[name] = &rounds{Proxy: p}
	}
	for n := range s.Rounds {
		slowest := math.Inf(1)
		for _, phase := range []func(*rounds) error{
			func(r *rounds) error {
				err := r.measureSaturated(ctx, s)
				slowest = min(slowest, r.answers.lastValue())
				return err
			},
			func(r *rounds) error { return r.measurePaced(ctx, s, slowest/2) },
			func(r *rounds) error { return r.measureStreams(ctx, s) },
		} {
			for i := range names {
				r := all[names[(i+n)%len(names)]]
				if err := phase(r); err != nil {
					return fmt.Errorf("%s: %w", r.Name, err)
				}
			}
		}
		for _, name := range names {
			r := all[name]
			env.Progress(fmt.Sprintf("round %d, %s: %.0f answers/s, p99 %.2f ms at %.0f/s, %.0f events/s", n+1, r.Name, r.answers.lastValue(), r.pacedP99.lastValue(), slowest/2, r.events.lastValue()))
		}
	}
	peer := all[s.Peers[len(s.Peers)-1]]
	for _, name := range names {
		if err := all[name].noteRounds(env); err != nil {
			return err
		}
	}
	for _, name := range names[:len(names)-1] {
		// The gateway's own ratios have no prefix, because they are compared over time.
		env.setRatios(strings.TrimPrefix(name+"_", "gateway_"), all[name], peer)
	}
	return nil
}

// setRatios sets figures that are medians of the ratios within a round.
func (e Env) setRatios(prefix string, own, peer *rounds) {
	e.Result.Figure(prefix+"json_ratio", own.answers.ratiosTo(peer.answers).medianValue(), "of "+peer.Name+"'s answers/s")
	e.Result.Figure(prefix+"json_p99_ratio", own.answersP99.ratiosTo(peer.answersP99).medianValue(), "of its p99")
	e.Result.Figure(prefix+"paced_p99_ratio", own.pacedP99.ratiosTo(peer.pacedP99).medianValue(), "of the peer's p99, at the same rate")
	e.Result.Figure(prefix+"sse_ratio", own.events.ratiosTo(peer.events).medianValue(), "of its events/s")
	e.Result.Figure(prefix+"sse_p99_ratio", own.eventsP99.ratiosTo(peer.eventsP99).medianValue(), "of its p99")
}

// rounds are the measurements of one proxy in all rounds.
type rounds struct {
	*proxies.Proxy
	answers, answersP99, pacedP99, events, eventsP99 series
}

type series []float64

func (s series) lastValue() float64 { return s[len(s)-1] }

// ratiosTo returns the ratio in each round.
func (s series) ratiosTo(other series) series {
	ratios := make(series, len(s))
	for i := range s {
		ratios[i] = s[i] / other[i]
	}
	return ratios
}

func (s series) medianValue() float64 {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[len(sorted)/2]
}

func (r *rounds) measureSaturated(ctx context.Context, s *Gateway) error {
	at, err := r.Answers(ctx, s.Window, s.Connections)
	r.answers, r.answersP99 = append(r.answers, at.PerSecond), append(r.answersP99, measure.Millis(at.P99))
	return err
}

func (r *rounds) measurePaced(ctx context.Context, s *Gateway, perSecond float64) error {
	at, err := r.Paced(ctx, s.Window, s.Connections, perSecond)
	r.pacedP99 = append(r.pacedP99, measure.Millis(at.P99))
	return err
}

func (r *rounds) measureStreams(ctx context.Context, s *Gateway) error {
	at, err := r.Events(ctx, s.Window, s.Streams, s.Events)
	r.events, r.eventsP99 = append(r.events, at.PerSecond), append(r.eventsP99, measure.Millis(at.P99))
	return err
}

func (r *rounds) noteRounds(env Env) error {
	// The memory of nginx includes its children, which do the work.
	usage, err := measure.ReadFamily(r.PID())
	if err != nil {
		return err
	}
	env.Result.Figure(r.Name+"_json_per_s", r.answers.medianValue(), "answers/s")
	env.Result.Figure(r.Name+"_json_p99_ms", r.answersP99.medianValue(), "ms")
	env.Result.Figure(r.Name+"_paced_p99_ms", r.pacedP99.medianValue(), "ms, at half of the slowest proxy's limit")
	env.Result.Figure(r.Name+"_sse_per_s", r.events.medianValue(), "events/s")
	env.Result.Figure(r.Name+"_sse_p99_ms", r.eventsP99.medianValue(), "ms of a whole stream")
	env.Result.Figure(r.Name+"_rss_mib", float64(usage.RSS)/(1<<20), "MiB at the end")
	return nil
}
