// Package routesync keeps the table of routes equal to what the region's agent says, and reports to the agent
// what the gateway serves.
//
//	agent ──Watch──▶ apply ──▶ table ──▶ file        (what is served after a restart,
//	agent ◀─Report── served, health ◀───┘             agent and control plane gone)
//
// Without the agent, no route is lost: the table does not change, and after a restart it is read from the file.
// A table_id is kept only after the whole table has arrived, so that numbers of two tables are never compared. If a
// stream breaks before that, the agent sends the whole table again.
//
// Routes are acknowledged as soon as they are served. One call at a time reports all changes until then.
package routesync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/apps/gateway/internal/traffic"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/neighbours"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1/gatewayv1connect"
)

const (
	// firstInterval is used until the agent's first heartbeat sets another interval.
	firstInterval = 5 * time.Second
	// silences is the number of intervals without a frame after which a stream ends.
	silences = 3
	// reportTimeout is the time in which an agent must answer a report, unless its interval is longer. An agent may
	// have thousands of apps on a busy machine.
	reportTimeout = 10 * time.Second
	// saveEvery is the least time between two writes of the file.
	saveEvery = time.Second
)

// features of the gateway. See gatewayv1.WatchRequest.
var features = []string{"hold", "pairing"}

// again is the delay between two watches, as the comments in gateway.proto require.
var again = backoff.Policy{Min: 100 * time.Millisecond, Max: 5 * time.Second}

// Config configures a Source.
type Config struct {
	Client gatewayv1connect.RouteServiceClient
	// GatewayID should belong only to this gateway. ProcessID is new with each start.
	GatewayID, ProcessID string
	// Another returns another GatewayID, in case a second gateway has the same GatewayID.
	Another func() string
	Version string
	Table   *table.Table
	// Traffic is reported to the agent.
	Traffic *traffic.Traffic
	// Neighbours is called with the regions to which requests may be handed over. Nil: they are ignored.
	Neighbours func(*neighbours.Picture)
	// File is the path of the file that keeps the table. Empty: the table is not kept.
	File string
	Log  *slog.Logger
	Rand func() float64
}

// Source fills a table with routes. Make it with Open, and call Watch, Report and Save once each.
type Source struct {
	cfg    Config
	report chan struct{}
	save   chan struct{}

	mu   sync.Mutex
	id   string // the current GatewayID
	held savedRoutes
	// complete is closed once a whole table has arrived, now or before a restart.
	complete chan struct{}
	have     sync.Once
	// stream is the table_id of the running stream, once its whole table has arrived. Empty: no report can be sent.
	// number counts such streams. cut ends the stream.
	stream   string
	number   int
	cut      context.CancelCauseFunc
	interval time.Duration
	served   map[string]*gatewayv1.Served  // acknowledgements that were not reported yet, by app
	all      bool                          // whether the next report acknowledges all routes
	requests map[string]uint64             // the reported counts of requests, by deployment
	counted  time.Time                     // when the counts of requests were last read
	loads    map[string]*gatewayv1.AppLoad // the reported loads, by app
	looked   time.Time                     // when the loads were last read
	leaving  bool
	// parted is closed once the agent has the report that the gateway leaves.
	parted chan struct{}
}

// Open fills the table with the content of the file. If the file cannot be read, it returns an error and a
// Source that starts without the file.
func Open(cfg Config) (*Source, error) {
	s := &Source{
		cfg: cfg, id: cfg.GatewayID, report: make(chan struct{}, 1), save: make(chan struct{}, 1),
		complete: make(chan struct{}), parted: make(chan struct{}), interval: firstInterval, served: map[string]*gatewayv1.Served{},
	}
	if cfg.Neighbours == nil {
		s.cfg.Neighbours = func(*neighbours.Picture) {}
	}
	s.held.apps = map[string][]byte{}
	if cfg.File == "" {
		return s, nil
	}
	h, found, err := loadFile(cfg.File)
	if err != nil {
		return s, err
	}
	for id, data := range h.apps {
		app := &gatewayv1.AppRoutes{}
		var spec upstream.Spec
		if err = proto.Unmarshal(data, app); err == nil {
			spec, err = specOf(app)
		}
		if err == nil {
			err = cfg.Table.Put(spec)
		}
		if err != nil {
			cfg.Log.Warn("stored routes cannot be served", "app_id", id, "error", err)
			delete(h.apps, id)
			h.tableID = "" // so that the agent sends the whole table
		}
	}
	s.held = h
	if h.neighbours != nil {
		s.cfg.Neighbours(h.neighbours)
		s.serveRemote(nil, h.neighbours)
	}
	if found {
		s.have.Do(func() { close(s.complete) })
	}
	return s, nil
}

// Completed returns a channel that is closed once the gateway has a whole table.
func (s *Source) Completed() <-chan struct{} { return s.complete }

// Complete reports whether the gateway has a whole table.
func (s *Source) Complete() bool {
	select {
	case <-s.complete:
		return true
	default:
		return false
	}
}

// Watch keeps the table up to date until ctx ends.
func (s *Source) Watch(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		whole, err := s.watchOnce(ctx)
		if ctx.Err() != nil {
			break
		}
		if whole {
			failures = 0
		}
		if connect.CodeOf(err) == connect.CodeAborted {
			s.renameGateway()
		}
		s.cfg.Log.WarnContext(ctx, "stream of routes ended; serving the last known routes", "attempt", failures, "error", err)
		if backoff.Sleep(ctx, again.Delay(failures, s.cfg.Rand)) != nil {
			break
		}
		failures++
	}
	return ctx.Err()
}

// renameGateway gives the gateway another id, because an unknown process with the same id took over its stream.
// Otherwise both processes would take the stream from each other again and again.
func (s *Source) renameGateway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.cfg.Another()
	s.cfg.Log.Error("another gateway has the id of this gateway: is its --data-dir a copy, or on a file system without working locks?", "gateway", s.id, "now", id)
	s.id = id
}

var errSilent = errors.New("the agent was silent for three intervals")

// watchOnce reads one stream to its end. whole reports whether the stream sent a whole table.
func (s *Source) watchOnce(ctx context.Context) (whole bool, err error) {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	s.mu.Lock()
	s.cut, s.interval = cut, firstInterval
	req := &gatewayv1.WatchRequest{GatewayId: s.id, ProcessId: s.cfg.ProcessID, TableId: s.held.tableID, Version: s.cfg.Version, Features: features}
	s.mu.Unlock()
	for _, spec := range s.cfg.Table.Specs() {
		if spec.Elsewhere {
			continue
		}
		req.Have = append(req.Have, &gatewayv1.AppVersion{AppId: spec.AppID, Epoch: spec.Epoch, Generation: spec.Generation, Change: spec.Change})
	}
	defer func() {
		s.mu.Lock()
		s.stream = ""
		s.mu.Unlock()
	}()
	silence := time.AfterFunc(silences*firstInterval, func() { cut(errSilent) })
	defer silence.Stop()
	stream, err := s.cfg.Client.Watch(ctx, req)
	if err != nil {
		return false, fmt.Errorf("watch: %w", causeOr(ctx, err))
	}
	defer func() { _ = stream.Close() }() // watchOnce returns the error of the stream
	began := ""
	for stream.Receive() {
		silence.Reset(silences * s.currentInterval())
		switch frame := stream.Msg().Frame.(type) {
		case *gatewayv1.WatchResponse_Begin:
			began = frame.Begin.TableId
			s.beginTable(began)
		case *gatewayv1.WatchResponse_Apps:
			for _, app := range frame.Apps.Apps {
				s.applyRoutes(ctx, app)
			}
			s.signalChange(s.report)
			s.signalChange(s.save)
		case *gatewayv1.WatchResponse_End:
			if began == "" {
				return whole, errors.New("watch: the table ended before it began")
			}
			whole = true
			s.endTable(began)
		case *gatewayv1.WatchResponse_Neighbours:
			s.takeNeighbours(frame.Neighbours)
		case *gatewayv1.WatchResponse_Heartbeat:
			if d := frame.Heartbeat.Interval.AsDuration(); d > 0 {
				s.mu.Lock()
				s.interval = d
				s.mu.Unlock()
				silence.Reset(silences * d)
				s.signalChange(s.report)
			}
		}
	}
	if err := stream.Err(); err != nil {
		return whole, fmt.Errorf("watch: %w", causeOr(ctx, err))
	}
	return whole, errors.New("watch: the agent ended the stream")
}

// Wake asks the agent to start instances of an app at zero. It returns how long a start takes until the first
// instance is ready. 0: not known.
func (s *Source) Wake(ctx context.Context, appID string) (time.Duration, error) {
	s.mu.Lock()
	id := s.id
	s.mu.Unlock()
	res, err := s.cfg.Client.Wake(ctx, &gatewayv1.WakeRequest{GatewayId: id, AppId: appID})
	if err != nil {
		return 0, fmt.Errorf("wake: %w", causeOr(ctx, err))
	}
	return max(res.GetReadyIn().AsDuration(), 0), nil
}

// causeOr returns the cause of ctx if ctx has ended, because the cause says more than err. Otherwise it returns err.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (s *Source) currentInterval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.interval
}

func (s *Source) signalChange(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // the receiver has yet to receive the last signal
	}
}

func (s *Source) beginTable(tableID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held.tableID != tableID {
		s.held.tableID = ""
	}
	s.served = map[string]*gatewayv1.Served{}
}

func (s *Source) endTable(tableID string) {
	s.mu.Lock()
	s.held.tableID, s.stream = tableID, tableID
	s.all = true
	s.have.Do(func() { close(s.complete) })
	s.number++
	s.mu.Unlock()
	s.signalChange(s.report)
	s.signalChange(s.save)
}

// takeNeighbours takes the agent's picture of other regions.
func (s *Source) takeNeighbours(n *gatewayv1.Neighbours) {
	s.mu.Lock()
	was := s.held.neighbours
	s.held.neighbours = was.With(n)
	now := s.held.neighbours
	s.mu.Unlock()
	s.cfg.Neighbours(now)
	s.serveRemote(was, now)
	s.signalChange(s.save)
}

// serveRemote applies the changes of apps whose hosts are only in other regions.
func (s *Source) serveRemote(was, now *neighbours.Picture) {
	if was == nil {
		was = &neighbours.Picture{}
	}
	for id := range was.Apps {
		if now.Apps[id] == nil {
			s.serveHeld(id, nil)
		}
	}
	for id, app := range now.Apps {
		if before := was.Apps[id]; before == nil || before.AppName != app.AppName || !slices.Equal(before.Hosts, app.Hosts) {
			s.serveHeld(id, app)
		}
	}
}

// serveHeld applies the routes that this gateway keeps of an app, and its hosts in other regions.
func (s *Source) serveHeld(id string, other *gatewayv1.AppNeighbours) {
	s.mu.Lock()
	data := s.held.apps[id]
	s.mu.Unlock()
	app := &gatewayv1.AppRoutes{}
	err := proto.Unmarshal(data, app)
	app.AppId = id // for an app without kept routes, too
	if err == nil && len(app.Hosts) == 0 {
		err = s.serveApp(app, other)
	}
	if err != nil {
		s.cfg.Log.Error("hosts of an app in other regions cannot be served", "app_id", id, "error", err)
	}
}

// serveApp applies an app's routes of this region, and its hosts that only other regions have.
func (s *Source) serveApp(app *gatewayv1.AppRoutes, other *gatewayv1.AppNeighbours) error {
	spec, err := specWith(app, other)
	if err != nil {
		return err
	}
	if len(spec.Hosts) == 0 && len(spec.Previews) == 0 {
		s.cfg.Table.Remove(app.AppId)
		return nil
	}
	return s.cfg.Table.Put(spec)
}

// neighboursOf returns what the gateway knows of the app in other regions. Nil: nothing.
func (s *Source) neighboursOf(id string) *gatewayv1.AppNeighbours {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held.neighbours == nil {
		return nil
	}
	return s.held.neighbours.Apps[id]
}

// applyRoutes applies one app's routes. Routes that cannot be served are not acknowledged, and the app's earlier
// routes stay.
func (s *Source) applyRoutes(ctx context.Context, app *gatewayv1.AppRoutes) {
	data, err := proto.Marshal(app)
	if err == nil {
		err = s.serveApp(app, s.neighboursOf(app.AppId))
	}
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "new routes cannot be served; serving the earlier ones", "app_id", app.AppId, "generation", app.Generation, "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if isRemoval(app) {
		delete(s.held.apps, app.AppId)
	} else {
		s.held.apps[app.AppId] = data
	}
	s.served[app.AppId] = &gatewayv1.Served{AppId: app.AppId, Epoch: app.Epoch, Generation: app.Generation, InstancesChange: app.Change}
}

// Save keeps the file up to date until ctx ends, and then once more.
func (s *Source) Save(ctx context.Context) error {
	if s.cfg.File == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	var last []byte
	write := func() {
		s.mu.Lock()
		data := encode(s.held)
		s.mu.Unlock()
		if !s.Complete() || string(data) == string(last) {
			return
		}
		if err := replaceFile(s.cfg.File, data); err != nil {
			s.cfg.Log.ErrorContext(ctx, "cannot store routes on disk: after a restart the gateway serves older ones", "error", err)
			s.signalChange(s.save) // tries again after saveEvery
			return
		}
		last = data
	}
	for {
		select {
		case <-ctx.Done():
			write()
			return ctx.Err()
		case <-s.save:
			write()
		}
		if backoff.Sleep(ctx, saveEvery) != nil {
			write()
			return ctx.Err()
		}
	}
}
