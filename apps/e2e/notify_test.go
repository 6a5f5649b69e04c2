package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// notice is a notification that an endpoint received.
type notice struct {
	ID, Type, Subject string
	Data              struct {
		What, Why, App string
		Version        int32
		RolloutID      string `json:"rollout_id"`
	}
	// wrong describes a fault of the call itself.
	wrong error
}

// pager is a receiver of notifications that refuses the first try of each.
type pager struct {
	mu     sync.Mutex
	secret string
	calls  []notice
	tries  map[string]int
}

func (p *pager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var n notice
	if err == nil {
		err = json.Unmarshal(body, &n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	id := r.Header.Get("Webhook-Id")
	key, decodeErr := base64.StdEncoding.DecodeString(strings.TrimPrefix(p.secret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, r.Header.Get("Webhook-Timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	switch {
	case err != nil:
	case decodeErr != nil:
		err = decodeErr
	case r.Header.Get("Webhook-Signature") != want:
		err = fmt.Errorf("it is signed %q", r.Header.Get("Webhook-Signature"))
	case n.ID != id:
		err = fmt.Errorf("it is %q in the header and %q in the body", id, n.ID)
	}
	n.wrong = err
	p.calls = append(p.calls, n)
	if p.tries[id]++; p.tries[id] == 1 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// got returns the received calls about the app, in their order.
func (p *pager) got(app string) (calls []notice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.calls {
		if n.Data.App == app {
			calls = append(calls, n)
		}
	}
	return calls
}

func testNotified(t *testing.T, s *stack) {
	const app = "notified"
	p := &pager{tries: map[string]int{}}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	made := must(t, s.owner.notifications.SetNotificationEndpoint, &windlassv1.SetNotificationEndpointRequest{
		Mutation: mutation(), Name: "pager", Url: server.URL + "/hook?token=mine",
	})
	p.mu.Lock()
	p.secret = made.Secret
	p.mu.Unlock()

	v := newVerdicts(t)
	v.serve(t)
	v.say(`{"verdict": "fail", "message": "no answer was right"}`)
	s.deployBy(t, app, spec(replicas(2), label("good")), judged(v))
	s.waitLive(t, app, 1)
	require.Empty(t, p.got(app), "nothing failed")
	v2 := s.deployBy(t, app, spec(replicas(2), label("bad")), judged(v))
	s.waitFailed(t, app, v2)

	var calls []notice
	require.Eventually(t, func() bool {
		calls = p.got(app)
		return len(calls) >= 4
	}, time.Minute, 100*time.Millisecond, "two notifications, each refused once")
	tries := map[string][]string{}
	for _, n := range calls {
		require.NoError(t, n.wrong)
		require.Equal(t, []any{int32(2), v2.RolloutId}, []any{n.Data.Version, n.Data.RolloutID})
		require.Contains(t, n.Subject, "/"+app)
		tries[n.Type] = append(tries[n.Type], n.ID)
	}
	for _, kind := range []string{"run.windlass.rollout.rolled_back.v1", "run.windlass.rollout.failed.v1"} {
		require.Len(t, tries[kind], 2, kind)
		require.Len(t, slices.Compact(tries[kind]), 1, "all tries have the same id")
	}
	require.Eventually(t, func() bool {
		list := must(t, s.owner.notifications.ListNotificationDeliveries, &windlassv1.ListNotificationDeliveriesRequest{Endpoint: "pager"})
		return !slices.ContainsFunc(list.Deliveries, func(d *windlassv1.NotificationDelivery) bool {
			return d.State != windlassv1.NotificationDelivery_STATE_DELIVERED
		})
	}, time.Minute, 200*time.Millisecond)
	out := s.cli(t).ok("notify", "deliveries", "pager")
	require.Contains(t, out, "RolloutGoingBack")
	require.NotContains(t, out+s.cli(t).ok("notify", "list"), "token=mine")
}
