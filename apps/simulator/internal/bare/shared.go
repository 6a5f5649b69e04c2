package bare

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Shared returns how many deployments per second a minimal system could make, if each of them goes to the
// given number of regions. The system does only what a durable workflow of two steps needs, and shares all
// work that can be shared. Calls that come during a commit share the next commit. An agent gets all changes
// in one frame, and reports all of them in one report. A step reads the rows that a decision would need.
// Nothing is checked, planned or run, and each object has only one row.
//
//	user      call               commit a row for each region, and the records of the call; send step 1
//	step 1                       read the rows, commit the changes (feed), an event on each agent's stream
//	agents                       commit the events of a frame to their inboxes, without a flush
//	agents    report             commit the instance; the last sends step 2
//	step 2                       read the rows and the instances, commit that they are ready
func (db *DB) Shared(ctx context.Context, ingress, admin string, window time.Duration, underWay, regions int) (perSecond float64, err error) {
	s := &shared{db: db}
	defer func() {
		for _, region := range s.regions {
			err = errors.Join(err, db.clearRegion(ctx, region))
		}
		err = errors.Join(err, db.remove(ctx, "workspace_id", "ws_bare", "history", "audit", "idempotency"))
	}()
	origin := make([]byte, sha256.Size)
	for range regions {
		region := "reg_bare_" + newNonce()
		if _, err := db.ExecContext(ctx, "INSERT INTO region_heads (region, epoch, revision, chain, base_revision, base_chain) VALUES "+placeholders(1, 6),
			region, 1, 0, origin, 0, origin); err != nil {
			return 0, fmt.Errorf("add a region: %w", err)
		}
		s.regions, s.events = append(s.regions, region), append(s.events, make(chan string, underWay))
	}
	slices.Sort(s.regions)
	s.rows = conveyor{commit: s.addRows}
	s.changes = conveyor{commit: s.addChanges}
	s.ready = conveyor{commit: s.markReady}
	if s.steps, err = serve(ctx, ingress, admin, underWay, s.handleStep); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.steps.close()) }()

	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("bare deployments: %w", err)
	}
	_, handler := agentv1connect.NewAgentServiceHandler(s)
	serving, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	parts.Go(func() {
		// Streams that are left at the end are cut on purpose.
		_ = rpc.Serve(serving, rpc.NewServer(rpc.ServerConfig{Handler: handler}), listener, time.Second)
	})
	client := rpc.NewHTTPClient(rpc.HTTPClientConfig{})
	defer client.CloseIdleConnections()
	calls := agentv1connect.NewAgentServiceClient(client, "http://"+listener.Addr().String())
	folder, err := os.MkdirTemp("", "windlass-bare-")
	if err != nil {
		return 0, fmt.Errorf("bare deployments: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	agents, running := errgroup.WithContext(ctx)
	ended, end := context.WithCancel(running)
	for n := range regions {
		agents.Go(func() error { return s.runAgent(ended, calls, strconv.Itoa(n), folder) })
	}
	defer func() { end(); err = errors.Join(err, agents.Wait()) }()

	return callRate(running, window, underWay, func(ctx context.Context, _ int64) error {
		id, d := ident.New("dep"), &deployment{done: make(chan error, 1)}
		d.reports.Store(int32(regions))
		s.waiting.Store(id, d)
		defer s.waiting.Delete(id)
		if _, err := calls.Report(ctx, &agentv1.ReportRequest{SessionId: userCall, Instances: instancesOf(id)}); err != nil {
			return fmt.Errorf("deploy %s: %w", id, err)
		}
		select {
		case err := <-d.done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// deployment is a deployment under way.
type deployment struct {
	begun   atomic.Bool  // set by the first step
	reports atomic.Int32 // reports that are still missing
	done    chan error
}

// userCall is the session of a report that represents a user's call.
const userCall = "user"

type shared struct {
	agentv1connect.UnimplementedAgentServiceHandler

	db                   *DB
	steps                *object
	rows, changes, ready conveyor
	waiting              sync.Map // deployments, by id
	regions              []string
	events               []chan string // of each region
}

// conveyor does group commits: all calls that come during one commit share the next.
type conveyor struct {
	commit func(ctx context.Context, ids []string) error

	mu   sync.Mutex
	ids  []string
	told []chan error
	busy bool
}

func (c *conveyor) do(ctx context.Context, id string) error {
	done := make(chan error, 1)
	c.mu.Lock()
	c.ids, c.told = append(c.ids, id), append(c.told, done)
	if !c.busy {
		c.busy = true
		go c.workOn(context.WithoutCancel(ctx))
	}
	c.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *conveyor) workOn(ctx context.Context) {
	for {
		c.mu.Lock()
		ids, told := c.ids, c.told
		c.ids, c.told = nil, nil
		c.busy = len(ids) > 0
		c.mu.Unlock()
		if len(ids) == 0 {
			return
		}
		var err error
		for range maxTries {
			if err = c.commit(ctx, ids); err == nil || !mustRetry(err) {
				break
			}
		}
		for _, done := range told {
			done <- err
		}
	}
}

// handleStep is the handler that Restate invokes.
func (s *shared) handleStep(ctx context.Context, id string) error {
	found, ok := s.waiting.Load(id)
	if !ok {
		return nil // a repeated invocation, which is done already
	}
	d := found.(*deployment)
	if d.begun.Swap(true) {
		d.done <- s.ready.do(ctx, id)
		return nil
	}
	err := s.changes.do(ctx, id)
	if err != nil {
		d.done <- err
		return nil //nolint:nilerr // the waiting call gets the error, and Restate must not retry the step
	}
	for _, events := range s.events {
		events <- id
	}
	return nil
}

// Report handles the call of a user or an agent.
func (s *shared) Report(ctx context.Context, req *agentv1.ReportRequest) (*agentv1.ReportResponse, error) {
	var ids []string
	for _, in := range req.Instances {
		ids = append(ids, in.DeploymentId)
	}
	if req.SessionId == userCall {
		for _, id := range ids {
			if err := s.rows.do(ctx, id); err != nil {
				return nil, err
			}
		}
	} else {
		n, err := s.regionIndex(req.SessionId)
		if err != nil {
			return nil, err
		}
		if err := s.db.putInstances(ctx, ids, s.regions[n]); err != nil {
			return nil, err
		}
		ids = slices.DeleteFunc(ids, func(id string) bool {
			d, ok := s.waiting.Load(id)
			return !ok || d.(*deployment).reports.Add(-1) > 0
		})
	}
	sends, ctx := errgroup.WithContext(ctx)
	sends.SetLimit(16)
	for _, id := range ids {
		sends.Go(func() error { return s.steps.send(ctx, id) })
	}
	return &agentv1.ReportResponse{}, sends.Wait()
}

// regionIndex returns the index of the region whose agent has the session.
func (s *shared) regionIndex(session string) (int, error) {
	n, err := strconv.Atoi(session)
	if err != nil || n < 0 || n >= len(s.regions) {
		return 0, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("session %q is no region's", session))
	}
	return n, nil
}

// Watch sends new changes to the agent.
func (s *shared) Watch(ctx context.Context, req *agentv1.WatchRequest, out *connect.ServerStream[agentv1.WatchResponse]) error {
	n, err := s.regionIndex(req.SessionId)
	if err != nil {
		return err
	}
	events := s.events[n]
	for {
		delta := &agentv1.Delta{}
		select {
		case <-ctx.Done():
			return nil
		case id := <-events:
			delta.Items = append(delta.Items, itemOf(id))
		}
		for more := true; more; {
			select {
			case id := <-events:
				delta.Items = append(delta.Items, itemOf(id))
			default:
				more = false
			}
		}
		if err := out.Send(&agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Delta{Delta: delta}}); err != nil {
			return err
		}
	}
}

// itemOf returns the item with all that an agent needs to run a deployment.
func itemOf(id string) *agentv1.Item {
	replicas := int32(1)
	return &agentv1.Item{
		Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: id, Epoch: 1, Generation: 2, SpecHash: make([]byte, sha256.Size),
		Content: &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{
			Action: agentv1.DeploymentState_ACTION_APPLY,
			Deployment: &agentv1.Deployment{
				Id: id, TemplateHash: make([]byte, sha256.Size),
				Spec: &windlassv1.DeploymentSpec{Command: []string{"serve"}, Args: []string{"--model", "example"}, Replicas: &replicas},
			},
		}},
	}
}

// inbox is the agent's file of received changes.
type inbox struct{ *bbolt.DB }

var bucketItems = []byte("items")

func openInbox(path string) (inbox, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, NoFreelistSync: true})
	if err != nil {
		return inbox{}, fmt.Errorf("open inbox: %w", err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucketItems)
		return err
	})
	if err != nil {
		return inbox{}, errors.Join(fmt.Errorf("open inbox: %w", err), db.Close())
	}
	return inbox{db}, nil
}

func (in inbox) put(items []*agentv1.Item) error {
	err := in.Update(func(tx *bbolt.Tx) error {
		for _, item := range items {
			row, err := proto.Marshal(item)
			if err != nil {
				return err
			}
			if err := tx.Bucket(bucketItems).Put([]byte(item.Key), row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("store a frame: %w", err)
	}
	return nil
}

// runAgent stores and reports the changes that it receives, in one report after the other, until ctx ends.
func (s *shared) runAgent(ctx context.Context, calls agentv1connect.AgentServiceClient, session, folder string) (err error) {
	in, err := openInbox(filepath.Join(folder, session))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	over := func(err error) error {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx was ended on purpose, and err is only its consequence
		}
		return err
	}
	stream, err := calls.Watch(ctx, &agentv1.WatchRequest{SessionId: session})
	if err != nil {
		return over(fmt.Errorf("watch: %w", err))
	}
	told := make(chan []string, 1024)
	var reporter errgroup.Group
	reporter.Go(func() error {
		for ids := range told {
			for more := true; more; {
				select {
				case next := <-told:
					ids = append(ids, next...)
					more = next != nil
				default:
					more = false
				}
			}
			if _, err := calls.Report(ctx, &agentv1.ReportRequest{SessionId: session, Instances: instancesOf(ids...)}); err != nil {
				return over(fmt.Errorf("report: %w", err))
			}
		}
		return nil
	})
	var stored error
	for stored == nil && stream.Receive() {
		items := stream.Msg().GetDelta().GetItems()
		stored = in.put(items)
		var ids []string
		for _, item := range items {
			ids = append(ids, item.Key)
		}
		select {
		case told <- ids:
		case <-ctx.Done():
		}
	}
	close(told)
	_ = stream.Close() // it ended with ctx
	return errors.Join(stored, reporter.Wait(), over(stream.Err()))
}

func instancesOf(ids ...string) (out []*agentv1.InstanceState) {
	for _, id := range ids {
		out = append(out, &agentv1.InstanceState{DeploymentId: id})
	}
	return out
}

func anyOf(ids []string, first ...any) []any {
	for _, id := range ids {
		first = append(first, id)
	}
	return first
}

// addRows adds the rows of deployments that a user requests, and the records of that call.
func (s *shared) addRows(ctx context.Context, ids []string) error {
	return s.db.inTx(ctx, func(tx *sql.Tx) error {
		at := time.Now().UnixMilli()
		var history, audit, keys []any
		for _, id := range ids {
			history = append(history, ident.New("hst"), "ws_bare", "app_bare", at, "Deployed", "a user asked for it", "bare", "", id, 1, "")
			audit = append(audit, ident.New("aud"), "ws_bare", at, "bare", "usr_bare", "", "Deploy", "app", id, "", "")
			keys = append(keys, "ws_bare", id, "", "Deploy", "", at)
		}
		return errors.Join(
			seedRows(ctx, tx, ids, s.regions),
			insert(ctx, tx, "history (id, workspace_id, app_id, at, what, why, who, rollout_id, deployment_id, version, region)", 11, history),
			insert(ctx, tx, "audit (id, workspace_id, at, actor, actor_id, source, procedure_name, resource_kind, resource_id, before_json, after_json)", 11, audit),
			insert(ctx, tx, "idempotency (workspace_id, idem_key, request_hash, procedure_name, response, created_at)", 6, keys))
	})
}

// markReady marks the deployments whose instances are all ready.
func (s *shared) markReady(ctx context.Context, ids []string) error {
	return s.db.inTx(ctx, func(tx *sql.Tx) error {
		if err := lockRows(ctx, tx, ids); err != nil {
			return err
		}
		in := placeholders(1, len(ids))
		err := each(ctx, tx, "SELECT deployment_id, region, status, updated_at FROM instances WHERE deployment_id IN "+in, anyOf(ids), func(rows *sql.Rows) error {
			var id, region string
			var status, at int64
			return rows.Scan(&id, &region, &status, &at)
		})
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE deployment_topology SET status = 3, updated_at = ? WHERE deployment_id IN "+in, anyOf(ids, time.Now().UnixMilli())...)
		return err
	})
}

// addChanges is FeedWriter.Commit for many deployments whose generation is known.
func (s *shared) addChanges(ctx context.Context, ids []string) error {
	return s.db.inTx(ctx, func(tx *sql.Tx) error {
		if err := lockRows(ctx, tx, ids); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE deployment_topology SET generation = generation + 1, updated_at = ? WHERE deployment_id IN "+placeholders(1, len(ids)),
			anyOf(ids, time.Now().UnixMilli())...); err != nil {
			return err
		}
		return appendChanges(ctx, tx, s.regions, ids, func(string, string) int64 { return 2 })
	})
}

// lockRows reads and locks the rows that a step decides about.
func lockRows(ctx context.Context, tx *sql.Tx, ids []string) error {
	return each(ctx, tx, "SELECT deployment_id, region, replicas, status, generation FROM deployment_topology WHERE deployment_id IN "+
		placeholders(1, len(ids))+" FOR UPDATE", anyOf(ids), func(rows *sql.Rows) error {
		var id, region string
		var replicas, status, generation int64
		return rows.Scan(&id, &region, &replicas, &status, &generation)
	})
}
