// Package session keeps the agent connected. It joins, opens Watch, stores the frames in the inbox
// and sends reports. When any of these ends, it starts again with full jitter.
//
// The session id is that of the agent's process. When Watch is opened again, the session continues
// with the same fence, without a new inventory. Reports are sent only while a stream is open, with
// the fence of its Hello. Instances keep running without the control plane.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/logs"
	"github.com/windlass-run/windlass/apps/agent/internal/report"
	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// Client is the part of the agent API that a session calls.
type Client interface {
	Join(context.Context, *agentv1.JoinRequest) (*agentv1.JoinResponse, error)
	RenewCredential(context.Context, *agentv1.RenewCredentialRequest) (*agentv1.RenewCredentialResponse, error)
	Watch(context.Context, *agentv1.WatchRequest) (*connect.ServerStreamForClient[agentv1.WatchResponse], error)
	UploadLogs(context.Context, *agentv1.UploadLogsRequest) (*agentv1.UploadLogsResponse, error)
}

// Instances answers requests about single instances.
type Instances interface {
	logs.Reader
	Logs(ctx context.Context, instanceID string, tailLines int) ([]byte, error)
	Restart(ctx context.Context, instanceID string) error
}

// Reporter reports for one session.
type Reporter interface {
	Run(ctx context.Context, s report.Session) error
	// Reported returns the sequence of the last report that the control plane must have stored.
	Reported() int64
	// Heard is called at every bookmark.
	Heard()
}

// Config configures a Session.
type Config struct {
	Client      Client
	Credentials *Credentials
	// TokenFile holds the join token. It is read while there is no credential.
	TokenFile string
	Info      *agentv1.AgentInfo
	Inbox     *inbox.Inbox
	Reporter  Reporter
	// Elsewhere closes unused connections before the stream that follows a GoAway, because the old
	// connection would lead to the same server again. Nil: the connections stay open.
	Elsewhere func()
	// Changed is called with the keys that a frame changed.
	Changed func(keys ...inbox.Key)
	// Neighbours is called with the regions around this region. Nil: no call.
	Neighbours func(*gatewayv1.Neighbours)
	Instances  Instances
	// Traffic returns the request counts of the region's gateways.
	Traffic func(*agentv1.TrafficRequest) *agentv1.TrafficResponse
	// Series returns the samples of an app.
	Series     func(*agentv1.SeriesRequest) *agentv1.SeriesResponse
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Rand       func() float64
	// Reconnect is the delay between attempts. Default: reconnect.
	Reconnect backoff.Policy
	// Silence is how long a stream may be silent before the agent opens a new one. Default: 45 s,
	// which is more than twice the longest time between two bookmarks.
	Silence time.Duration
}

const (
	callTimeout = 10 * time.Second
	// settled is how long a stream must have lasted so that the next attempt counts as the first.
	settled = 10 * time.Second
	// maxRetryAfter limits the delay that a leaving server may ask for. A delay of a year must not
	// keep a region from other servers.
	maxRetryAfter = time.Minute
	// uploadChunk is the size of one part of an answer, in bytes.
	uploadChunk = 256 << 10
	// maxAnswers is the maximum number of answers, of up to 1 MiB each, that are gathered at the
	// same time.
	maxAnswers = 8
)

// reconnect is the delay between attempts to reach the control plane: 0.2 s to 3 s, full jitter.
//
// The longest delay is the longest time that a region stays away after an outage. It leaves room,
// within 10 s of the outage's end, for the reports that follow and for the rollouts that wait for
// them. Its price is the number of attempts during the outage: a thousand agents make 1000 / 1.6 s
// = 625 attempts a second, and each is a refused connection.
//
// After the outage, all agents come within 3 s. Each costs one transaction on its own row. Few
// agents need a snapshot then, and snapshots wait for a token. An agent makes no second attempt
// while its first is queued. So if more agents come than the control plane can accept in 3 s, they
// connect as fast as it accepts them.
var reconnect = backoff.Policy{Min: 200 * time.Millisecond, Max: 3 * time.Second}

// Session is the agent's side of the protocol.
type Session struct {
	cfg       Config
	id        string
	connected atomic.Bool
	// away is when the last stream ended, or when the Session was made, in Unix nanoseconds.
	away    atomic.Int64
	gauge   prometheus.Gauge
	repairs prometheus.Counter
	// repair makes the next Watch ask for the buckets that differ.
	repair bool
	// refused means that the control plane refuses the credential. The credential is kept until a
	// join gives another one.
	refused bool
	// back is signalled, with a buffer of one, when a stream begins.
	back chan struct{}
}

// New checks the config and returns a Session.
func New(cfg Config) (*Session, error) {
	if cfg.Client == nil || cfg.Credentials == nil || cfg.Inbox == nil || cfg.Reporter == nil || cfg.Changed == nil || cfg.Instances == nil || cfg.Traffic == nil || cfg.Series == nil || cfg.Log == nil || cfg.Registerer == nil || cfg.Rand == nil {
		return nil, errors.New("session: every field of Config without a default is required")
	}
	if cfg.Reconnect == (backoff.Policy{}) {
		cfg.Reconnect = reconnect
	}
	if cfg.Silence == 0 {
		cfg.Silence = 45 * time.Second
	}
	s := &Session{
		cfg:  cfg,
		id:   cfg.Credentials.session,
		back: make(chan struct{}, 1),
	}
	s.away.Store(time.Now().UnixNano())
	s.registerMetrics()
	return s, nil
}

// Connected reports whether a stream is open.
func (s *Session) Connected() bool { return s.connected.Load() }

// Away returns for how long there has been no stream, and 0 while a stream is open.
func (s *Session) Away(now time.Time) time.Duration {
	if s.connected.Load() {
		return 0
	}
	return now.Sub(time.Unix(0, s.away.Load()))
}

// Run stays connected until ctx ends.
func (s *Session) Run(ctx context.Context) error {
	attempt := 0
	for ctx.Err() == nil {
		start := time.Now()
		wait, err := s.runStream(ctx)
		if s.connected.Load() {
			s.away.Store(time.Now().UnixNano())
			s.connected.Store(false)
		}
		s.gauge.Set(0)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is not a failure
		}
		if time.Since(start) > settled {
			attempt = 0
		}
		delay := s.cfg.Reconnect.Delay(attempt, s.cfg.Rand)
		attempt++
		var away goAway
		switch {
		case errors.As(err, &away):
			attempt = 0
			delay = time.Duration(s.cfg.Rand() * float64(max(wait, 100*time.Millisecond)))
			s.cfg.Log.InfoContext(ctx, "the control plane asked the agent to connect again", "reason", away.reason, "retry_in", delay)
		case errors.Is(err, ErrJoin):
			s.cfg.Log.ErrorContext(ctx, "cannot join the region", "error", err, "retry_in", delay)
		default:
			s.cfg.Log.WarnContext(ctx, "disconnected from the control plane", "error", err, "retry_in", delay)
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
		if errors.As(err, &away) && s.cfg.Elsewhere != nil {
			s.cfg.Elsewhere()
		}
	}
	return nil
}

// goAway is the error of a stream that ended because its server is leaving.
type goAway struct{ reason string }

func (g goAway) Error() string { return "go away: " + g.reason }

// errRepair ends a stream, so that the next stream has bucket sums.
var errRepair = errors.New("the inbox differs from the control plane's digest")

// errSnapshotNeeded ends a stream, so that the next stream begins with a snapshot; see inbox.Ask.
var errSnapshotNeeded = errors.New("it is unknown which deployment takes over a workload: watching again for a snapshot")

// runStream runs one stream, from the credential to the end of the stream.
func (s *Session) runStream(ctx context.Context) (retryAfter time.Duration, err error) {
	if err := s.ensureCredential(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	cursor := s.cfg.Inbox.Cursor()
	req := &agentv1.WatchRequest{
		SessionId: s.id, Agent: s.cfg.Info,
		Epoch: cursor.Epoch, ReceivedRevision: cursor.Revision, Chain: cursor.Chain,
		ReportedSequence: s.cfg.Reporter.Reported(), CountsAtEnd: true,
	}
	if stale := s.cfg.Inbox.Stale(); s.repair || stale {
		sums := s.cfg.Inbox.Sums()
		for i := range sums {
			if stale {
				// These sums match no bucket, so the control plane sends every bucket, and the
				// inbox forgets held items that are in none of them. The cursor stays, because the
				// control plane detects a fork by it.
				sums[i] = ^sums[i]
			}
		}
		req.BucketSums = sums[:]
		s.repair = false
	}
	// The watchdog ends a silent stream, including a stream that never sent a frame.
	watchdog := time.AfterFunc(s.cfg.Silence, func() { cancel(errors.New("the control plane sent nothing for too long")) })
	defer watchdog.Stop()

	stream, err := s.cfg.Client.Watch(ctx, req)
	if err != nil {
		return 0, s.streamError(ctx, err)
	}
	defer stream.Close() //nolint:errcheck // the stream is over in any case

	done := make(chan struct{})
	f := &frames{session: s, cancel: cancel, reporting: done, slots: make(chan struct{}, maxAnswers)}
	defer func() {
		cancel(nil)
		if f.reporter {
			<-done
		}
		f.answers.Wait()
	}()
	for stream.Receive() {
		watchdog.Reset(s.cfg.Silence)
		if err := f.handle(ctx, stream.Msg()); err != nil {
			if errors.Is(err, errRepair) {
				s.repair = true
				s.repairs.Inc()
			}
			return f.retryAfter, err
		}
	}
	return f.retryAfter, s.streamError(ctx, stream.Err())
}

// streamError returns the reason why the agent itself ended the stream. If the agent did not end
// it, streamError returns the stream's error.
func (s *Session) streamError(ctx context.Context, err error) error {
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		s.refused = true
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if err == nil {
		return errors.New("the control plane ended the stream")
	}
	return fmt.Errorf("watch: %w", err)
}

// ensureCredential makes sure that there is a valid credential.
func (s *Session) ensureCredential(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now := time.Now()
	if s.cfg.Credentials.Token() == "" || s.refused {
		err := s.cfg.Credentials.joinWithToken(ctx, s.cfg.Client, s.cfg.TokenFile, s.cfg.Info, now)
		switch {
		case err == nil:
			s.refused = false
			s.cfg.Log.InfoContext(ctx, "joined", "region", s.cfg.Credentials.Region())
			return nil
		case s.cfg.Credentials.Token() == "":
			return err
		}
		// The old credential may still be valid. For example, a server of the control plane refuses every
		// credential while it lacks the key that opens them.
		s.cfg.Log.WarnContext(ctx, "the credential was refused and joining again failed: trying the old credential", "error", err)
		return nil
	}
	return nil
}

func (s *Session) renewCredential(ctx context.Context, now time.Time) error {
	public, err := s.cfg.Credentials.publicKey()
	if err != nil {
		return err
	}
	resp, err := s.cfg.Client.RenewCredential(ctx, &agentv1.RenewCredentialRequest{PublicKey: public})
	if err != nil {
		return fmt.Errorf("renew credential: %w", err)
	}
	return s.cfg.Credentials.store(resp.Credential, now)
}

// renewRetry allows hundreds of attempts in half of a credential's lifetime.
var renewRetry = backoff.Policy{Min: time.Second, Max: 2 * time.Minute}

// Renew renews the credential during long streams, until ctx ends. If a renewal was due during an
// outage, it comes as soon as there is a stream again, because the credential may expire soon.
func (s *Session) Renew(ctx context.Context) error {
	failures := 0
	for {
		wait := time.Minute
		if s.cfg.Credentials.Token() != "" {
			wait = max(time.Until(s.cfg.Credentials.renewAt()), 0)
			if failures == 0 {
				// Clocks that differ must not cause a loop without pauses.
				wait = max(wait, time.Minute)
			} else {
				wait = max(wait, renewRetry.Delay(failures-1, s.cfg.Rand))
			}
			wait += time.Duration(s.cfg.Rand() * float64(min(wait, time.Minute)))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(wait, time.Hour)):
		case <-s.back:
		}
		now := time.Now()
		if s.cfg.Credentials.Token() == "" || now.Before(s.cfg.Credentials.renewAt()) {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		err := s.renewCredential(bounded, now)
		cancel()
		failures++
		if err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "cannot renew the credential; will try again", "error", err)
		}
	}
}
