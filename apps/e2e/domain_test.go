package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// names is a DNS server with TXT records that tests set.
type names struct {
	address string

	mu    sync.Mutex
	texts map[string]string // by name, with its final dot
}

func serveNames(t *testing.T) *names {
	t.Helper()
	n := &names{texts: map[string]string{}}
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	n.address = conn.LocalAddr().String()
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(n.answer)}
	served := make(chan error, 1)
	started := make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() { served <- server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		require.NoError(t, server.Shutdown())
		require.NoError(t, <-served)
	})
	return n
}

func (n *names) set(name, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.texts[name+"."] = text
}

func (n *names) answer(w dns.ResponseWriter, q *dns.Msg) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := new(dns.Msg).SetReply(q)
	if text, has := n.texts[q.Question[0].Name]; has && q.Question[0].Qtype == dns.TypeTXT {
		m.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{text}}}
	} else {
		m.Rcode = dns.RcodeNameError
	}
	_ = w.WriteMsg(m) // the client repeats the query
}

// shown is a route or a domain in the form that the command line prints.
type shown struct {
	Host, Kind, State string
	Name              string
	TxtName, TxtValue string
	Verified          bool
	Regions           []struct {
		Region                             string
		Generation, AcknowledgedGeneration string
	}
}

// ownDomain serves an app under its own domain with the command line, then removes the domain, and then the
// app.
func (s *stack) ownDomain(t *testing.T, app string) {
	t.Helper()
	const domain = "chat.windlass-e2e.example"
	c := s.cli(t)
	served := func(want int) {
		t.Helper()
		for region, url := range s.gateways {
			s.eventually(t, fmt.Sprintf("%s answers %d in %s", domain, want, region), func(ctx context.Context) error {
				resp, err := askHealth(ctx, url, domain, "")
				if err == nil && resp.StatusCode != want {
					err = fmt.Errorf("it answers %s", resp.Status)
				}
				return err
			})
		}
	}
	served(http.StatusNotFound)
	c.fails(1, []string{"domain", "verify", domain}, "windlass domain add")
	c.fails(1, []string{"domain", "add", "not a domain", "--app", app}, "domain")
	var added shown
	c.json(&added, "domain", "add", strings.ToUpper(domain), "--app", app)
	require.Equal(t, domain, added.Name)
	require.False(t, added.Verified)
	c.fails(1, []string{"domain", "verify", domain}, added.TxtName)
	served(http.StatusNotFound)

	// The record appears while the command waits for it.
	time.AfterFunc(time.Second, func() { s.names.set(added.TxtName, added.TxtValue) })
	verified := c.run("", "domain", "verify", domain, "--wait", "2m")
	require.Zero(t, verified.code, verified.stderr)
	require.Contains(t, verified.stderr, "is verified")
	served(http.StatusOK)
	require.Contains(t, c.ok("domain", "list", "--app", app), domain)

	var routes []shown
	s.eventually(t, "every host runs in every region, as acknowledged", func(context.Context) error {
		c.json(&routes, "route", "list", app)
		kinds := map[string]int{}
		for _, r := range routes {
			if r.State != windlassv1.RouteState_ROUTE_STATE_RUNNING.String() {
				return fmt.Errorf("%s is %s", r.Host, r.State)
			}
			for _, in := range r.Regions {
				// A preview host shows the running version, independently of the generation of the routes.
				if r.Kind != "KIND_PREVIEW" && (in.Generation == "" || in.Generation != in.AcknowledgedGeneration) {
					return fmt.Errorf("%s serves %s of %s in %s", r.Host, in.AcknowledgedGeneration, in.Generation, in.Region)
				}
			}
			kinds[r.Kind]++
		}
		if kinds["KIND_STABLE"] != 1 || kinds["KIND_DOMAIN"] != 1 || kinds["KIND_PREVIEW"] < 1 {
			return fmt.Errorf("there are %v", kinds)
		}
		return nil
	})
	for _, text := range []string{c.ok("route", "list", app), c.ok("route", "show", app)} {
		for _, r := range routes {
			require.Contains(t, text, r.Host)
		}
	}

	c.ok("domain", "remove", domain)
	served(http.StatusNotFound)
	require.NotContains(t, c.ok("domain", "list"), domain)
	c.ok("delete", app, "--yes")
	c.fails(1, []string{"route", "list", app}, app)
	require.NotContains(t, c.ok("route", "list"), app)
}

// tokenByToken asserts that the tokens of a completion arrive one by one through the whole product.
func (s *stack) tokenByToken(t *testing.T) {
	t.Helper()
	const words, perSecond = 10, 10
	resp := s.deployReady(t, "slow", spec(args("--token-rate", fmt.Sprint(perSecond))))
	host := s.host(t, "slow", windlassv1.Route_KIND_STABLE, 0)
	// If the machine pauses meanwhile, several tokens arrive at once.
	s.eventually(t, "each token arrives separately", func(ctx context.Context) error {
		body := `{"model": "echo", "stream": true, "messages": [{"role": "user", "content": "` + strings.Repeat("word ", words) + `"}]}`
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateways[us]+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Host = host
		answer, err := caller.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		var last time.Time
		apart := 0
		lines := bufio.NewScanner(answer.Body)
		for lines.Scan() {
			if !strings.HasPrefix(lines.Text(), "data:") {
				continue
			}
			if !last.IsZero() && time.Since(last) > time.Second/perSecond/2 {
				apart++
			}
			last = time.Now()
		}
		if lines.Err() == nil && apart < words-2 {
			return fmt.Errorf("%d of %d came apart from the one before", apart, words)
		}
		return lines.Err()
	})
	s.requireDeleted(t, resp.AppId, "slow")
}
