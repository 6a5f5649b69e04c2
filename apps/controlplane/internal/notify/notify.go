// Package notify sends notifications to the endpoints of workspaces.
//
// A notification is a row, which is written in the transaction of its history entry. Any process sends rows that
// are due. It claims a row by counting an attempt and moving the due time past the call. Then it calls the
// endpoint and records the outcome. If the process dies in between, its claim ends by itself, and the row is sent
// again with the same id. So each notification arrives at least once.
//
// A slow endpoint does not delay other endpoints. Concurrent calls are limited for each endpoint, each workspace and
// the process. Endpoints without a free slot are left out when rows are read. Workspaces share the slots of the
// process, so that workspaces with slow endpoints leave slots to other workspaces.
package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/callout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/notification"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/seal"
	"github.com/windlass-run/windlass/pkg/share"
)

const (
	// every is the time between two reads of due rows.
	every = time.Second
	// gaugesEvery is the time between two counts of pending rows.
	gaugesEvery = 30 * time.Second
	// callTimeout bounds a call.
	callTimeout = 10 * time.Second
	// storeTimeout bounds a transaction.
	storeTimeout = 10 * time.Second
	// claimFor is longer than it may take to read the endpoint, call it and record the outcome.
	claimFor = 60 * time.Second
	// giveUpAfter is how long a notification is tried.
	giveUpAfter = 24 * time.Hour
	// A row is kept for this long after its last try. A person may replay a dead row.
	keepDelivered = 24 * time.Hour
	keepDead      = 7 * 24 * time.Hour
	// readRows is how many rows one query reads.
	readRows = 500
)

// Limits on concurrent calls in a process. maxCalls is much larger than maxCallsOfWorkspace, so that slots stay free
// while the calls of several workspaces are slow. maxTransactions bounds the transactions of calls, because the API
// uses the same connections to the database.
const (
	maxCalls            = 256
	maxCallsOfWorkspace = 16
	maxCallsOfEndpoint  = 4
	maxTransactions     = 16
)

// retries space out the tries of one notification.
var retries = backoff.Policy{Min: 5 * time.Second, Max: 3 * time.Hour}

// Tx has the queries of this package.
type Tx interface {
	DueDeliveries(at int64, busy []string, limit int) ([]model.Delivery, error)
	ClaimDelivery(d model.Delivery, until int64, merged []string) error
	NoteDelivery(model.Delivery) error
	GetNotificationEndpoints(ids []string) ([]model.NotificationEndpoint, error)
	GetSecret(workspaceID, environmentID, name string) (model.Secret, error)
	PendingDeliveries() (n int, since int64, err error)
}

// Store runs transactions.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
	View(ctx context.Context, fn func(Tx) error) error
}

// Config configures a Service.
type Config struct {
	Store Store
	Box   *seal.Box
	// Allow has the networks in which endpoints may be, in addition to public addresses.
	Allow      guard.Networks
	UserAgent  string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Random returns a number in [0, 1). Default: rand.Float64.
	Random func() float64
}

// Service sends notifications.
type Service struct {
	cfg     Config
	http    *http.Client
	metrics *metrics
	// freed receives a value when a call ends.
	freed chan struct{}
	calls sync.WaitGroup
	// transactions bounds the transactions of calls.
	transactions chan struct{}

	mu sync.Mutex
	// slots are the process's slots for calls. Workspaces share them, because an endpoint decides how long a call takes.
	slots     *share.Permits
	endpoints map[string]int
	// refused has the endpoints that got no slot because their workspace must not take another one. A value is the
	// workspace's id.
	refused map[string]string
}

// New checks cfg and returns a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Box == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("notify: Store, Box, Log and Registerer are required")
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("notify: register metrics: %w", err)
	}
	return &Service{
		cfg: cfg, http: callout.NewClient(cfg.Allow, callTimeout), metrics: m, freed: make(chan struct{}, 1),
		transactions: make(chan struct{}, maxTransactions), slots: share.NewPermits(maxCalls), endpoints: map[string]int{}, refused: map[string]string{},
	}, nil
}

// Run sends due notifications until ctx ends. Calls under way are then cancelled. Another process makes them
// again when their claims end.
func (s *Service) Run(ctx context.Context) error {
	defer s.calls.Wait()
	var counted time.Time
	for {
		wait := every + time.Duration(s.cfg.Random()*float64(every)/4)
		more, err := s.startDue(ctx, time.Now())
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.cfg.Log.WarnContext(ctx, "cannot read or claim notifications", "error", err)
		case more:
			wait = 0
		}
		if now := time.Now(); now.Sub(counted) >= gaugesEvery {
			counted = now
			if err := s.setGauges(ctx, now); err != nil && ctx.Err() == nil {
				s.cfg.Log.WarnContext(ctx, "cannot count notifications", "error", err)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-s.freed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// startDue claims the due rows that have a free slot, and starts their calls. more reports whether it read
// readRows rows, so that more may be due.
func (s *Service) startDue(ctx context.Context, now time.Time) (more bool, err error) {
	busy, full := s.busyEndpoints()
	if full {
		return false, nil
	}
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var due []model.Delivery
	err = s.cfg.Store.View(bounded, func(tx Tx) (err error) {
		due, err = tx.DueDeliveries(now.UnixMilli(), busy, readRows)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read due notifications: %w", err)
	}
	var taken []notification.Call
	for _, call := range inTurn(notification.Merge(due)) {
		if s.take(call.Delivery) {
			taken = append(taken, call)
		}
	}
	claimed, err := s.claimCalls(bounded, taken, now)
	for i, call := range taken {
		d := call.Delivery
		if !claimed[i] {
			s.release(d)
			continue
		}
		d.Attempts++
		s.calls.Go(func() {
			defer s.freeSlot(d)
			s.deliverOnce(ctx, d)
		})
	}
	// The next round leaves out the endpoints without a free slot.
	return err == nil && len(due) == readRows, err
}

// inTurn orders calls so that workspaces take turns: the first call of each, then the second of each.
func inTurn(calls []notification.Call) []notification.Call {
	var turns [][]notification.Call
	next := map[string]int{}
	for _, c := range calls {
		n := next[c.Delivery.WorkspaceID]
		next[c.Delivery.WorkspaceID]++
		if n == len(turns) {
			turns = append(turns, nil)
		}
		turns[n] = append(turns[n], c)
	}
	return slices.Concat(turns...)
}

// claimCalls claims the deliveries of calls. For each call, claimed reports whether the claim succeeded: another process may
// have claimed the delivery before. Calls with a single delivery share a transaction. A call with merged deliveries has
// its own.
func (s *Service) claimCalls(ctx context.Context, calls []notification.Call, now time.Time) (claimed []bool, err error) {
	claimed = make([]bool, len(calls))
	var single []int
	var errs []error
	for i, c := range calls {
		if len(c.Merged) == 0 {
			single = append(single, i)
			continue
		}
		if err := s.claimTogether(ctx, calls, []int{i}, claimed, now); err != nil {
			errs = append(errs, err)
			continue
		}
		if claimed[i] {
			s.metrics.merged.Add(float64(len(c.Merged)))
		}
	}
	if len(single) > 0 {
		// Every process locks rows in the same order.
		slices.SortFunc(single, func(a, b int) int { return model.CompareDeliveries(calls[a].Delivery, calls[b].Delivery) })
		errs = append(errs, s.claimTogether(ctx, calls, single, claimed, now))
	}
	return claimed, errors.Join(errs...)
}

// claimTogether claims the calls at the indexes in one transaction, and sets claimed.
func (s *Service) claimTogether(ctx context.Context, calls []notification.Call, indexes []int, claimed []bool, now time.Time) error {
	until := now.Add(claimFor).UnixMilli()
	var got []int
	err := s.cfg.Store.Update(ctx, func(tx Tx) error {
		got = nil // the transaction may run again
		for _, i := range indexes {
			err := tx.ClaimDelivery(calls[i].Delivery, until, calls[i].Merged)
			switch {
			case err == nil:
				got = append(got, i)
			case !errors.Is(err, model.ErrConflict) || len(calls[i].Merged) > 0:
				return fmt.Errorf("claim notification %s: %w", calls[i].Delivery.MessageID, err)
			}
		}
		return nil
	})
	if errors.Is(err, model.ErrConflict) {
		return nil // another process was faster
	}
	if err != nil {
		return err
	}
	for _, i := range got {
		claimed[i] = true
	}
	return nil
}

// busyEndpoints returns the endpoints without a free slot. full reports whether the process has no free slot.
func (s *Service) busyEndpoints() (ids []string, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.endpoints {
		if n >= maxCallsOfEndpoint {
			ids = append(ids, id)
		}
	}
	for id, workspace := range s.refused {
		if s.canTake(workspace) {
			delete(s.refused, id)
		} else {
			ids = append(ids, id)
		}
	}
	return ids, s.slots.Free() == 0
}

// canTake reports whether the workspace may have another slot. Called with mu held.
func (s *Service) canTake(workspace string) bool {
	return s.slots.Held(workspace) < maxCallsOfWorkspace && s.slots.CanTake(workspace)
}

// take takes a slot for a call, and reports whether one was free.
func (s *Service) take(d model.Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endpoints[d.EndpointID] >= maxCallsOfEndpoint {
		return false
	}
	if !s.canTake(d.WorkspaceID) {
		s.refused[d.EndpointID] = d.WorkspaceID
		return false
	}
	s.endpoints[d.EndpointID]++
	return s.slots.Take(d.WorkspaceID)
}

// release frees the slot of a call.
func (s *Service) release(d model.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slots.GiveBack(d.WorkspaceID)
	if s.endpoints[d.EndpointID]--; s.endpoints[d.EndpointID] == 0 {
		delete(s.endpoints, d.EndpointID)
	}
}

// freeSlot frees the slot of a call that ended, and makes Run check again.
func (s *Service) freeSlot(d model.Delivery) {
	s.release(d)
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// deliverOnce makes one try of a claimed delivery and records the outcome.
func (s *Service) deliverOnce(ctx context.Context, d model.Delivery) {
	begin := time.Now()
	fatal, err := s.call(ctx, d)
	if ctx.Err() != nil {
		return // the process stops, so the endpoint did not fail: the claim ends by itself
	}
	now := time.Now()
	d.Problem = ""
	outcome := "delivered"
	if err == nil {
		d.State, d.DoneAt, d.DueAt = model.DeliveryDelivered, now.UnixMilli(), now.Add(keepDelivered).UnixMilli()
	} else {
		outcome = "failed"
		d.Problem = err.Error()
		next := now.Add(retries.Delay(int(d.Attempts)-1, s.cfg.Random)).UnixMilli()
		d.DueAt = next
		if fatal || next > d.TriesSince+giveUpAfter.Milliseconds() {
			d.State, d.DoneAt, d.DueAt = model.DeliveryDead, now.UnixMilli(), now.Add(keepDead).UnixMilli()
		}
	}
	s.metrics.calls.WithLabelValues(outcome).Observe(now.Sub(begin).Seconds())
	noting, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err = s.runLimited(noting, s.cfg.Store.Update, func(tx Tx) error { return tx.NoteDelivery(d) })
	switch {
	case errors.Is(err, model.ErrConflict):
		// The endpoint was removed, or the claim ended and the row is with another process.
	case err != nil && ctx.Err() == nil:
		s.cfg.Log.WarnContext(ctx, "cannot record the outcome of a notification: it is sent again with the same id", "notification", d.MessageID, "error", err)
	case err == nil && d.State == model.DeliveryDead:
		s.metrics.dead.Inc()
		s.cfg.Log.WarnContext(ctx, "a notification was given up", "workspace", d.WorkspaceID, "endpoint", d.EndpointID, "notification", d.MessageID,
			"tries", d.Attempts, "problem", d.Problem)
	}
}

// call sends the delivery. fatal reports that another try cannot succeed. Errors do not show the endpoint's address.
func (s *Service) call(ctx context.Context, d model.Delivery) (fatal bool, err error) {
	endpoint, target, err := s.targetOf(ctx, d)
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "cannot read a notification endpoint", "endpoint", d.EndpointID, "error", err)
		return false, errors.New("the control plane cannot read the endpoint")
	}
	switch {
	case endpoint.ID == "":
		return true, errors.New("the endpoint was removed")
	case endpoint.Disabled:
		return true, errors.New("the endpoint is disabled")
	}
	body, contentType, err := notification.Body(d, endpoint.Format)
	if err != nil {
		return true, errors.New("the notification's body cannot be encoded")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("the endpoint has not answered within %s", callTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.URL, bytes.NewReader(body))
	if err != nil {
		return true, errors.New("the endpoint's url cannot be used")
	}
	at := time.Now().Unix()
	signature, err := target.Sign(d.MessageID, at, body)
	if err != nil {
		return true, err
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", s.cfg.UserAgent)
	req.Header.Set(notification.HeaderID, d.MessageID)
	req.Header.Set(notification.HeaderTimestamp, strconv.FormatInt(at, 10))
	req.Header.Set(notification.HeaderSignature, signature)
	resp, err := s.http.Do(req)
	if err != nil {
		return false, callout.Problem(ctx, err)
	}
	_ = resp.Body.Close() // only the status of the answer is read
	return resp.StatusCode == http.StatusGone, callout.Refused(resp.StatusCode)
}

// runLimited runs a transaction of a call, when fewer than maxTransactions run.
func (s *Service) runLimited(ctx context.Context, run func(context.Context, func(Tx) error) error, fn func(Tx) error) error {
	select {
	case s.transactions <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.transactions }()
	return run(ctx, fn)
}

// targetOf reads the endpoint of the delivery and its sealed part. The endpoint is zero if it was removed.
func (s *Service) targetOf(ctx context.Context, d model.Delivery) (e model.NotificationEndpoint, t notification.Target, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err = s.runLimited(ctx, s.cfg.Store.View, func(tx Tx) error {
		found, err := tx.GetNotificationEndpoints([]string{d.EndpointID})
		if err != nil || len(found) == 0 {
			return err
		}
		secret, err := tx.GetSecret(found[0].WorkspaceID, d.EndpointID, model.EndpointSecret)
		if err != nil {
			return fmt.Errorf("read the endpoint's secret: %w", err)
		}
		plain, err := s.cfg.Box.Open(secret.Ciphertext, model.SecretContext(secret.EnvironmentID, secret.Name, secret.Version))
		if err != nil {
			return fmt.Errorf("open the endpoint's secret: %w", err)
		}
		e = found[0]
		t, err = notification.ParseTarget(plain)
		return err
	})
	return e, t, err
}

// setGauges sets the gauges of pending notifications.
func (s *Service) setGauges(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return s.cfg.Store.View(ctx, func(tx Tx) error {
		n, since, err := tx.PendingDeliveries()
		if err != nil {
			return err
		}
		s.metrics.pending.Set(float64(n))
		age := 0.0
		if n > 0 {
			age = max(0, now.Sub(time.UnixMilli(since)).Seconds())
		}
		s.metrics.oldest.Set(age)
		return nil
	})
}
