package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/notification"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/seal"
)

const (
	patience = time.Minute
	secret   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
)

// harness is a workspace in memory, and a service that sends its notifications.
type harness struct {
	t   *testing.T
	db  *memory.Store
	box *seal.Box
	svc *Service
	// lost makes the recording of outcomes fail, as if the process had died.
	lost atomic.Bool
	// updates counts transactions that write.
	updates atomic.Int32
}

// losing fails to record outcomes while harness.lost is set.
type losing struct {
	Tx
	h *harness
}

func (l losing) NoteDelivery(d model.Delivery) error {
	if l.h.lost.Load() {
		return errors.New("the process is gone")
	}
	return l.Tx.NoteDelivery(d)
}

type bound struct {
	h    *harness
	with interface {
		Update(ctx context.Context, fn func(Tx) error) error
		View(ctx context.Context, fn func(Tx) error) error
	}
}

func (b bound) Update(ctx context.Context, fn func(Tx) error) error {
	b.h.updates.Add(1)
	return b.with.Update(ctx, func(tx Tx) error { return fn(losing{tx, b.h}) })
}

func (b bound) View(ctx context.Context, fn func(Tx) error) error { return b.with.View(ctx, fn) }

func setup(t *testing.T, allow ...string) *harness {
	t.Helper()
	key, err := seal.Generate()
	require.NoError(t, err)
	box, err := seal.New(key)
	require.NoError(t, err)
	h := &harness{t: t, box: box, db: memory.New(func() int64 { return time.Now().UnixMilli() })}
	networks, err := guard.Parse(allow)
	require.NoError(t, err)
	h.svc, err = New(Config{
		Store: bound{h, store.Bind[Tx](h.db)}, Box: box, Allow: networks, UserAgent: "windlass/test", Log: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(), Random: func() float64 { return 0.5 },
	})
	require.NoError(t, err)
	h.workspace("1")
	return h
}

// workspace makes the workspace ws_SUFFIX with the app app_SUFFIX.
func (h *harness) workspace(suffix string) {
	h.t.Helper()
	ws, project, environment := "ws_"+suffix, "prj_"+suffix, "env_"+suffix
	h.update(func(tx store.Tx) error {
		return errors.Join(
			tx.InsertWorkspace(model.Workspace{ID: ws, Name: "acme-" + suffix, ResourceVersion: 1}),
			tx.InsertProject(model.Project{ID: project, WorkspaceID: ws, Name: "default", ResourceVersion: 1}),
			tx.InsertEnvironment(model.Environment{ID: environment, WorkspaceID: ws, ProjectID: project, Name: "production", ResourceVersion: 1}),
			tx.InsertApp(model.App{ID: "app_" + suffix, WorkspaceID: ws, ProjectID: project, EnvironmentID: environment, Name: "chat", ResourceVersion: 1}))
	})
}

func (h *harness) update(fn func(store.Tx) error) {
	h.t.Helper()
	require.NoError(h.t, h.db.Update(context.Background(), fn))
}

func (h *harness) endpoint(name, url string) model.NotificationEndpoint {
	h.t.Helper()
	return h.endpointOf("1", name, url)
}

func (h *harness) endpointOf(workspace, name, url string) model.NotificationEndpoint {
	h.t.Helper()
	e := model.NotificationEndpoint{
		ID: ident.New("nte"), WorkspaceID: "ws_" + workspace, Name: name, Format: model.FormatCloudEvents, Kinds: model.AllNotificationKinds(),
	}
	plain, err := notification.Target{URL: url}.Rotate(secret, 0).Encode()
	require.NoError(h.t, err)
	sealed, err := h.box.Seal(plain, model.SecretContext(e.ID, model.EndpointSecret, 1))
	require.NoError(h.t, err)
	h.update(func(tx store.Tx) error {
		return errors.Join(tx.InsertNotificationEndpoint(e), tx.InsertSecretVersion(model.Secret{
			WorkspaceID: e.WorkspaceID, EnvironmentID: e.ID, Name: model.EndpointSecret, Version: 1, Ciphertext: sealed,
		}))
	})
	return e
}

// happen stores n history entries for which endpoints get notifications.
func (h *harness) happen(n int) {
	h.t.Helper()
	h.happenIn("1", n)
}

func (h *harness) happenIn(workspace string, n int) {
	h.t.Helper()
	h.update(func(tx store.Tx) error {
		var rows []model.History
		for range n {
			rows = append(rows, model.History{
				ID: ident.New("hst"), WorkspaceID: "ws_" + workspace, AppID: "app_" + workspace, At: time.Now().UnixMilli(), What: "RolloutFailed", Why: "CrashLoop", Who: "windlass", Version: 2,
			})
		}
		return tx.InsertHistory(rows)
	})
}

func (h *harness) deliveries(e model.NotificationEndpoint) (rows []model.Delivery) {
	h.t.Helper()
	require.NoError(h.t, h.db.View(context.Background(), func(tx store.Tx) (err error) {
		rows, err = tx.ListDeliveries(e.ID, -1, store.Page{})
		return err
	}))
	return rows
}

// run runs the service until the function that it returns is called.
func (h *harness) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.svc.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(h.t, <-done)
	}
}

// receiver is a transport that answers without a network, so that time can be virtual.
type receiver struct {
	mu     sync.Mutex
	ids    []string
	bodies map[string]string
	// answer returns the status for a call of the host. nil: 200 at once.
	answer func(req *http.Request) (int, error)
}

func (r *receiver) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	id := req.Header.Get(notification.HeaderID)
	r.mu.Lock()
	r.ids = append(r.ids, id)
	if was, again := r.bodies[id]; again && was != string(body) {
		r.ids = append(r.ids, "another body with id "+id)
	}
	r.bodies[id] = string(body)
	r.mu.Unlock()
	status := http.StatusOK
	if r.answer != nil {
		if status, err = r.answer(req); err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: status, Body: http.NoBody, Request: req}, nil
}

func (r *receiver) seen() (ids []string, distinct int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ids), len(r.bodies)
}

func (h *harness) receive(answer func(*http.Request) (int, error)) *receiver {
	r := &receiver{bodies: map[string]string{}, answer: answer}
	h.svc.http.Transport = r
	return r
}

func TestNotify_LosesNothingOfAReceiverThatIsDownForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ident.Forget()
		h := setup(t)
		up := time.Now().Add(time.Hour)
		r := h.receive(func(*http.Request) (int, error) {
			if time.Now().Before(up) {
				return http.StatusBadGateway, nil
			}
			return http.StatusNoContent, nil
		})
		e := h.endpoint("pager", "http://down.example/hook")
		defer h.run()()
		h.happen(3)
		time.Sleep(30 * time.Minute)
		for _, d := range h.deliveries(e) {
			require.Equal(t, model.DeliveryPending, d.State)
			require.Equal(t, "it answered 502 Bad Gateway", d.Problem)
		}
		h.happen(1)
		require.Greater(t, gauge(t, h, func() { time.Sleep(time.Minute) }), 1_800.0)
		time.Sleep(4 * time.Hour)
		rows := h.deliveries(e)
		require.Len(t, rows, 4)
		for _, d := range rows {
			require.Equal(t, []any{model.DeliveryDelivered, ""}, []any{d.State, d.Problem})
		}
		calls, distinct := r.seen()
		require.Equal(t, 4, distinct, "each has one id and one body in all tries")
		require.Less(t, len(calls), 60, "tries are spaced out")
	})
}

// gauge is the age of the oldest notification after the wait.
func gauge(t *testing.T, h *harness, wait func()) float64 {
	t.Helper()
	wait()
	return testutil.ToFloat64(h.svc.metrics.oldest)
}

func TestNotify_GivesUpAfterADayAndReplaysWithTheSameID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ident.Forget()
		h := setup(t)
		var fixed atomic.Bool
		r := h.receive(func(*http.Request) (int, error) {
			if fixed.Load() {
				return http.StatusOK, nil
			}
			return 0, io.ErrUnexpectedEOF
		})
		e := h.endpoint("pager", "http://gone.example/hook")
		defer h.run()()
		h.happen(1)
		time.Sleep(25 * time.Hour)
		d := h.deliveries(e)[0]
		require.Equal(t, []any{model.DeliveryDead, "the connection ended before the answer was complete"}, []any{d.State, d.Problem})
		calls, _ := r.seen()
		time.Sleep(time.Hour)
		again, _ := r.seen()
		require.Len(t, again, len(calls), "a dead delivery is not tried")

		fixed.Store(true)
		h.update(func(tx store.Tx) error {
			n, err := tx.ReplayDeliveries(e.ID, d.MessageID, time.Now().UnixMilli())
			require.Equal(t, 1, n)
			return err
		})
		time.Sleep(3 * time.Second)
		require.Equal(t, model.DeliveryDelivered, h.deliveries(e)[0].State)
		_, distinct := r.seen()
		require.Equal(t, 1, distinct)
	})
}

func TestNotify_RepeatsACallWithItsIDAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ident.Forget()
		h := setup(t)
		r := h.receive(nil)
		e := h.endpoint("pager", "http://up.example/hook")
		h.lost.Store(true)
		stop := h.run()
		h.happen(1)
		time.Sleep(5 * time.Second)
		stop()
		calls, _ := r.seen()
		require.Len(t, calls, 1)
		require.Equal(t, model.DeliveryPending, h.deliveries(e)[0].State)

		h.lost.Store(false)
		defer h.run()()
		time.Sleep(2 * claimFor)
		calls, distinct := r.seen()
		require.Equal(t, []int{2, 1}, []int{len(calls), distinct})
		require.Equal(t, []any{model.DeliveryDelivered, int32(2)}, []any{h.deliveries(e)[0].State, h.deliveries(e)[0].Attempts})
	})
}

func TestNotify_SlowEndpointDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ident.Forget()
		h := setup(t)
		var now, beyond atomic.Int32
		h.receive(func(req *http.Request) (int, error) {
			if req.URL.Host != "slow.example" {
				return http.StatusOK, nil
			}
			if now.Add(1) > maxCallsOfEndpoint {
				beyond.Add(1)
			}
			defer now.Add(-1)
			<-req.Context().Done()
			return 0, req.Context().Err()
		})
		slow, quick := h.endpoint("slow", "http://slow.example/hook"), h.endpoint("quick", "http://quick.example/hook")
		defer h.run()()
		for range 40 { // few enough to be sent one by one
			h.happen(15)
			time.Sleep(3 * time.Second)
		}
		require.Len(t, h.deliveries(quick), 40*15)
		for _, d := range h.deliveries(quick) {
			require.Equal(t, model.DeliveryDelivered, d.State)
			require.Less(t, d.DoneAt-d.At, int64(5_000))
		}
		require.Zero(t, beyond.Load())
		failed := 0
		for _, d := range h.deliveries(slow) {
			require.NotEqual(t, model.DeliveryDelivered, d.State)
			if d.Problem != "" {
				failed++
				require.Equal(t, "the endpoint has not answered within 10s", d.Problem)
			}
		}
		require.Positive(t, failed)
	})
}

func TestNotify_SlowWorkspacesDelayNoOther(t *testing.T) {
	for _, slow := range []int{1, 4, 16} {
		t.Run(fmt.Sprint(slow, " slow"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ident.Forget()
				h := setup(t)
				var now, most atomic.Int32
				h.receive(func(req *http.Request) (int, error) {
					if req.URL.Host == "quick.example" {
						return http.StatusOK, nil
					}
					most.Store(max(most.Load(), now.Add(1)))
					defer now.Add(-1)
					<-req.Context().Done()
					return 0, req.Context().Err()
				})
				quick := h.endpoint("quick", "http://quick.example/hook")
				defer h.run()()
				for i := range slow {
					workspace := fmt.Sprint("slow", i)
					h.workspace(workspace)
					for n := range 1 + maxCallsOfWorkspace/maxCallsOfEndpoint {
						h.endpointOf(workspace, fmt.Sprint("slow", n), "http://slow.example/hook")
					}
					h.happenIn(workspace, 2*maxCallsOfEndpoint)
				}
				for range 30 {
					h.happen(1)
					time.Sleep(3 * time.Second)
				}
				rows := h.deliveries(quick)
				require.Len(t, rows, 30)
				for _, d := range rows {
					require.Equal(t, model.DeliveryDelivered, d.State)
					require.Less(t, d.DoneAt-d.At, int64(1_500), "the delivery waits only for the next read of rows")
				}
				require.Positive(t, most.Load(), "the slow workspaces were called")
				require.LessOrEqual(t, int(most.Load()), maxCalls)
			})
		})
	}
}

func TestNotify_MergesAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ident.Forget()
		h := setup(t)
		r := h.receive(nil)
		e := h.endpoint("pager", "http://up.example/hook")
		defer h.run()()
		h.happen(400)
		time.Sleep(5 * time.Second)
		rows := h.deliveries(e)
		require.Len(t, rows, 1)
		require.Equal(t, []any{int32(400), model.DeliveryDelivered}, []any{rows[0].Events, rows[0].State})
		calls, _ := r.seen()
		require.Len(t, calls, 1)
		require.InDelta(t, 399, testutil.ToFloat64(h.svc.metrics.merged), 0)
	})
}

func TestNotify_LeavesDisabledEndpointsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ident.Forget()
		h := setup(t)
		r := h.receive(nil)
		e := h.endpoint("pager", "http://up.example/hook")
		h.happen(1)
		e.Disabled = true
		h.update(func(tx store.Tx) error { return tx.UpdateNotificationEndpoint(e) })
		defer h.run()()
		time.Sleep(5 * time.Second)
		d := h.deliveries(e)[0]
		require.Equal(t, []any{model.DeliveryDead, "the endpoint is disabled"}, []any{d.State, d.Problem})
		calls, _ := r.seen()
		require.Empty(t, calls)
	})
}

// once sends what is due and returns the endpoint's newest delivery.
func (h *harness) once(e model.NotificationEndpoint) model.Delivery {
	h.t.Helper()
	_, err := h.svc.startDue(h.t.Context(), time.Now())
	require.NoError(h.t, err)
	h.svc.calls.Wait()
	return h.deliveries(e)[0]
}

func TestClaim_IsOneTransactionAndLeavesOutWhatAnotherProcessHas(t *testing.T) {
	h := setup(t)
	e := h.endpoint("pager", "http://up.example/hook")
	h.happen(30)
	var calls []notification.Call
	for i, d := range h.deliveries(e) {
		if i%3 == 0 {
			h.update(func(tx store.Tx) error { return tx.ClaimDelivery(d, time.Now().Add(time.Hour).UnixMilli(), nil) })
		}
		calls = append(calls, notification.Call{Delivery: d})
	}
	claimed, err := h.svc.claimCalls(t.Context(), calls, time.Now())
	require.NoError(t, err)
	require.EqualValues(t, 1, h.updates.Load())
	for i, d := range h.deliveries(e) {
		require.Equal(t, i%3 != 0, claimed[i])
		require.EqualValues(t, 1, d.Attempts, "each delivery is claimed once")
	}
	claimed, err = h.svc.claimCalls(t.Context(), []notification.Call{{Delivery: calls[1].Delivery, Merged: []string{calls[2].Delivery.MessageID}}}, time.Now())
	require.NoError(t, err)
	require.Equal(t, []bool{false}, claimed)
	require.Len(t, h.deliveries(e), 30)
}

func TestCall_IsSignedAndSaysWhatHappened(t *testing.T) {
	h := setup(t, "127.0.0.0/8")
	got := make(chan *http.Request, 1)
	bodies := make(chan []byte, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- body
		got <- r
		_, _ = io.WriteString(w, strings.Repeat("not kept", 100))
	}))
	t.Cleanup(server.Close)
	e := h.endpoint("pager", server.URL+"/hook?token=t")
	h.happen(1)
	d := h.once(e)
	require.Equal(t, []any{model.DeliveryDelivered, ""}, []any{d.State, d.Problem})
	req, body := <-got, <-bodies
	require.Equal(t, "/hook?token=t", req.URL.String())
	require.Equal(t, []string{"POST", "application/cloudevents+json", "windlass/test", d.MessageID},
		[]string{req.Method, req.Header.Get("Content-Type"), req.Header.Get("User-Agent"), req.Header.Get("Webhook-Id")})
	var at int64
	_, err := fmt.Sscan(req.Header.Get("Webhook-Timestamp"), &at)
	require.NoError(t, err)
	want, err := notification.Target{Secrets: []notification.SigningSecret{{Value: secret}}}.Sign(d.MessageID, at, body)
	require.NoError(t, err)
	require.Equal(t, want, req.Header.Get("Webhook-Signature"))
	require.InDelta(t, time.Now().Unix(), at, 60)
	var event struct{ Type, Subject, ID string }
	require.NoError(t, json.Unmarshal(body, &event))
	require.Equal(t, []string{"run.windlass.rollout.failed.v1", "apps/default/production/chat", d.MessageID}, []string{event.Type, event.Subject, event.ID})
}

func TestCall_SaysWhatIsWrongAndNotWhere(t *testing.T) {
	var elsewhere atomic.Int32
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(target.Close)
	redirecting := httptest.NewServer(http.RedirectHandler(target.URL+"/secret", http.StatusTemporaryRedirect))
	t.Cleanup(redirecting.Close)
	gone := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }))
	t.Cleanup(gone.Close)
	for name, c := range map[string]struct {
		url, says string
		allow     []string
		state     model.DeliveryState
	}{
		"a redirect":         {redirecting.URL, "307, but redirects are not followed", []string{"127.0.0.0/8"}, model.DeliveryPending},
		"a private address":  {target.URL, "--webhook-allow", nil, model.DeliveryPending},
		"a private name":     {strings.Replace(target.URL, "127.0.0.1", "localhost", 1), "--webhook-allow", nil, model.DeliveryPending},
		"a cloud's metadata": {"http://169.254.169.254/latest", "--webhook-allow", nil, model.DeliveryPending},
		"no server":          {"http://127.0.0.1:1", "connection is refused", []string{"127.0.0.0/8"}, model.DeliveryPending},
		"gone for good":      {gone.URL, "410 Gone", []string{"127.0.0.0/8"}, model.DeliveryDead},
		"an unusable url":    {"http://[::1", "url cannot be used", nil, model.DeliveryDead},
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t, c.allow...)
			e := h.endpoint("pager", c.url)
			h.happen(1)
			d := h.once(e)
			require.Equal(t, c.state, d.State)
			require.Contains(t, d.Problem, c.says)
			for _, hidden := range []string{"127.0.0.1", "localhost", "secret", "169.254"} {
				require.NotContains(t, d.Problem, hidden)
			}
		})
	}
	require.Zero(t, elsewhere.Load())
}
