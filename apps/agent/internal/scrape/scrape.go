// Package scrape reads values of inference engines from the metrics pages of instances.
//
// Answers of instances are not trusted. A scrape connects only to the instance's address as the
// runtime reports it: it follows no redirect, uses no proxy and resolves no name. The time, the
// size of the answer and the number of concurrent scrapes are limited. Instances that do not answer
// use only their workspace's share of these. A signal is left out if one of its values is negative or
// not finite.
package scrape

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/share"
)

// The names of signals.
const (
	// Queue is the number of requests that wait in the engine.
	Queue = "queue"
	// Running is the number of requests that the engine works on.
	Running = "running"
	// Cache is the used share of the KV cache, from 0 to 1.
	Cache = "cache"
)

const (
	// timeout is the time limit of one scrape.
	timeout = 2 * time.Second
	// maxBody is the maximum size of an answer, and maxLine the maximum size of one of its lines,
	// in bytes. The metrics of vLLM have about 200 KiB.
	maxBody = 4 << 20
	maxLine = 64 << 10
	// atOnce is the maximum number of concurrent scrapes. One workspace alone may use half of them.
	// spread is the time over which scrapes start.
	atOnce = 32
	spread = 500 * time.Millisecond
)

// Target is a page of one instance's metrics.
type Target struct {
	InstanceID string
	// WorkspaceID is the workspace whose share of the concurrent scrapes is used.
	WorkspaceID string
	// Address is an IP address with a port.
	Address string
	Path    string
	// Metrics has the names of metrics, by signal.
	Metrics map[string]string
}

// Signals has values, by signal.
type Signals map[string]float64

// Scraper is safe for concurrent use.
type Scraper struct {
	transport http.RoundTripper
	// slots are shared by workspaces, because the instances of a workspace decide how long a scrape
	// takes.
	slots *share.Slots
	rand  func() float64
}

// New returns a Scraper. rand returns random numbers in [0, 1).
func New(rand func() float64) *Scraper {
	return &Scraper{transport: guard.Transport(&net.Dialer{Control: refuseAddress}, timeout), slots: share.NewSlots(atOnce), rand: rand}
}

var errRefused = errors.New("an instance cannot have this address")

// refuseAddress refuses addresses that no instance can have. One of them is the link-local address at
// which clouds serve the credentials of machines.
func refuseAddress(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return errRefused
	}
	if a := at.Addr().Unmap(); a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		return errRefused
	}
	return nil
}

// Scrape reads the targets until ctx ends. It returns the values that it has read, by instance.
func (s *Scraper) Scrape(ctx context.Context, targets []Target) map[string]Signals {
	var mu sync.Mutex
	var reading sync.WaitGroup
	out := map[string]Signals{}
	for _, t := range targets {
		reading.Go(func() {
			signals, err := s.scrapeOne(ctx, t)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if out[t.InstanceID] == nil {
				out[t.InstanceID] = Signals{}
			}
			maps.Copy(out[t.InstanceID], signals)
		})
	}
	reading.Wait()
	return out
}

func (s *Scraper) scrapeOne(ctx context.Context, t Target) (Signals, error) {
	if err := backoff.Sleep(ctx, time.Duration(s.rand()*float64(spread))); err != nil {
		return nil, err
	}
	if err := s.slots.Acquire(ctx, t.WorkspaceID); err != nil {
		return nil, err
	}
	defer s.slots.Release(t.WorkspaceID)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// A tenant may choose the path. The path is parsed separately, so that it cannot change the
	// host.
	page, err := url.ParseRequestURI(t.Path)
	if err == nil {
		_, err = netip.ParseAddrPort(t.Address)
	}
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", t.InstanceID, err)
	}
	page.Scheme, page.Host = "http", t.Address
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", t.InstanceID, err)
	}
	if req.URL.Host != t.Address {
		return nil, fmt.Errorf("scrape %s: path %q: %w", t.InstanceID, t.Path, errRefused)
	}
	req.Header.Set("User-Agent", "windlass-agent")
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	// RoundTrip follows no redirect.
	res, err := s.transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", t.InstanceID, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scrape %s: %s", t.InstanceID, res.Status)
	}
	signals, err := Parse(res.Body, t.Metrics)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", t.InstanceID, err)
	}
	return signals, nil
}

var errTooLarge = fmt.Errorf("the metrics have more than %d bytes", maxBody)

// Parse reads the signals from metrics in Prometheus' text format. A server with several engines
// has several series of a metric. Parse returns their sum or, for Cache, their mean. A missing
// metric gives no signal.
func Parse(from io.Reader, metrics map[string]string) (Signals, error) {
	// Most lines belong to other metrics, and are dropped before parsing.
	limited := &io.LimitedReader{R: from, N: maxBody + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	var kept bytes.Buffer
	for lines.Scan() {
		for _, name := range metrics {
			if isOf(lines.Bytes(), name) {
				kept.Write(lines.Bytes())
				kept.WriteByte('\n')
				break
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if limited.N <= 0 {
		return nil, errTooLarge
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&kept)
	if err != nil {
		return nil, err
	}
	out := Signals{}
	for signal, name := range metrics {
		if v, ok := valueOf(families[name], signal == Cache); ok {
			out[signal] = v
		}
	}
	return out, nil
}

// isOf reports whether a line is a sample of this metric.
func isOf(line []byte, name string) bool {
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(line, " \t"), []byte(name))
	return ok && len(rest) > 0 && (rest[0] == '{' || rest[0] == ' ' || rest[0] == '\t')
}

func valueOf(family *dto.MetricFamily, mean bool) (v float64, ok bool) {
	series := family.GetMetric()
	for _, m := range series {
		one := m.GetUntyped().GetValue()
		if !(one >= 0) || math.IsInf(one, 0) {
			return 0, false
		}
		v += one
	}
	if mean {
		v /= float64(max(len(series), 1))
	}
	return v, len(series) > 0 && !math.IsInf(v, 0)
}
