package remoteregions

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/neighbours"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

const app = "app_1"

func picture(urls map[string]string) *neighbours.Picture {
	a := &gatewayv1.AppNeighbours{AppId: app}
	for name, u := range urls {
		a.Regions = append(a.Regions, &gatewayv1.Neighbour{Region: name, GatewayUrl: u})
	}
	return &neighbours.Picture{Region: "here", Apps: map[string]*gatewayv1.AppNeighbours{app: a}}
}

func TestChoose_ReturnsTheNearestRegionThatMayTakeTheRequest(t *testing.T) {
	now := time.UnixMilli(0)
	var gone []string
	var log bytes.Buffer
	r := New(Config{
		Log: slog.New(slog.NewTextHandler(&log, nil)), Now: func() time.Time { return now }, Rand: func() float64 { return 0.5 },
		Gone: func(u string) { gone = append(gone, u) },
	})
	choose := func(tried ...string) string {
		at, _ := r.Choose(app, tried)
		return at.Name
	}
	require.Empty(t, choose())
	require.Empty(t, r.Here())
	r.Put(picture(map[string]string{"asia": "https://asia.test", "eu": "https://eu.test", "us": "http://us.test:81", "odd": "eu.test"}))
	require.Equal(t, "here", r.Here())
	require.Contains(t, log.String(), "region=odd gateway_url=eu.test")
	require.Equal(t, "asia", choose(), "no region was measured yet, so the first by name is chosen")

	took := func(u string, ms ...float64) {
		for _, m := range ms {
			r.noteTried(r.gateways[u], time.Duration(m*float64(time.Millisecond)), nil)
		}
	}
	took("https://asia.test", 180)
	took("http://us.test:81", 90.2, 60.9, 300)
	require.Equal(t, "us", choose(), "the shortest of the last connections counts")
	took("https://eu.test", 60.1)
	require.Equal(t, "eu", choose(), "eu is as near as us, in whole milliseconds")
	require.Equal(t, []string{"us", "asia", ""}, []string{choose("eu"), choose("eu", "us"), choose("eu", "us", "asia")})
	took("http://us.test:81", 300, 300, 300)
	require.Equal(t, "asia", choose("eu"), "us is farther away now")

	// A region that refused gets no requests of this app for a short time, which grows with each refusal.
	eu, _ := r.Choose(app, nil)
	r.Refused(eu)
	require.Equal(t, "asia", choose())
	now = now.Add(200 * time.Millisecond)
	require.Equal(t, "asia", choose())
	now = now.Add(100 * time.Millisecond)
	require.Equal(t, "eu", choose())
	r.Refused(eu)
	now = now.Add(300 * time.Millisecond)
	require.Equal(t, "asia", choose())
	now = now.Add(300 * time.Millisecond)
	require.Equal(t, "eu", choose())
	r.Took(eu)
	r.Refused(eu)
	now = now.Add(300 * time.Millisecond)
	require.Equal(t, "eu", choose(), "after Took, the time is short again")

	// A region that cannot be reached gets no requests of any app until a connection succeeds.
	r.Unreachable(eu)
	now = now.Add(time.Hour)
	require.Equal(t, "asia", choose())
	due, _ := r.dueGateways(now)
	require.Contains(t, due, r.gateways["https://eu.test"])
	r.noteTried(r.gateways["https://eu.test"], 0, errors.New("refused"))
	require.Equal(t, "asia", choose())
	took("https://eu.test", 60)
	require.Equal(t, "eu", choose())

	r.Put(picture(map[string]string{"us": "http://us.test:81", "asia": "https://other.test"}))
	require.ElementsMatch(t, []string{"https://asia.test", "https://eu.test", "eu.test"}, gone)
	require.Equal(t, "us", choose())
}

func TestConnect_TriesGatewaysUntilOneIsReached(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var mu sync.Mutex
	var log bytes.Buffer
	r := New(Config{
		Allow: guard.Networks{netip.MustParsePrefix("127.0.0.1/32")},
		Log:   slog.New(slog.NewTextHandler(&locked{mu: &mu, to: &log}, nil)), Now: time.Now, Rand: func() float64 { return 0 }, Gone: func(string) {},
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.Put(picture(map[string]string{"there": "http://" + l.Addr().String(), "away": "http://127.0.0.1:1"}))
	until := func(text string) {
		t.Helper()
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return bytes.Contains(log.Bytes(), []byte(text))
		}, 30*time.Second, time.Millisecond)
	}
	until("gateways of another region cannot be reached: requests")
	var at Region
	require.Eventually(t, func() (ok bool) {
		at, ok = r.Choose(app, nil)
		return ok && at.Name == "there"
	}, 30*time.Second, time.Millisecond)
	r.mu.Lock()
	tries := len(r.gateways[at.key.url].took)
	r.mu.Unlock()
	r.Unreachable(at)
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		g := r.gateways[at.key.url]
		return len(g.took) > tries && g.failures == 0
	}, 30*time.Second, time.Millisecond, "the gateway is tried at once")
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestConnect_UsesAllowedAddressesOnly(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	here := guard.Networks{netip.MustParsePrefix("127.0.0.1/32")}
	for _, c := range []struct {
		url   string
		allow guard.Networks
		says  string
	}{
		{"http://127.0.0.1:" + port, here, ""},
		{"https://127.0.0.1:" + port, here, ""},
		{"http://127.0.0.1:" + port, nil, "without TLS the address must be in a network of --neighbour-allow"},
		{"https://127.0.0.1:" + port, nil, "add its network to --neighbour-allow"},
		{"https://localhost:" + port, nil, "add its network to --neighbour-allow"},
		{"http://8.8.8.8", here, "without TLS the address must be in a network of --neighbour-allow"},
	} {
		u, err := url.Parse(c.url)
		require.NoError(t, err)
		_, err = Connect(t.Context(), c.allow, u)
		if c.says == "" {
			require.NoError(t, err, c.url)
		} else {
			require.ErrorContains(t, err, c.says, c.url)
		}
	}
}

type locked struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}
