package dispatch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// openTimeout is the timeout for everything before the first frame.
const openTimeout = 10 * time.Second

// maxEpochsAhead is the maximum difference between an agent's epoch and the head's. Each epoch between them is a fork
// that a restored database has forgotten, and needs one statement.
const maxEpochsAhead = 1000

// Watch streams the desired state of the caller's region.
func (s *Service) Watch(ctx context.Context, req *agentv1.WatchRequest, out *connect.ServerStream[agentv1.WatchResponse]) error {
	region, issuedAt, ok := s.cfg.Caller(ctx)
	if !ok {
		return rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "no agent credential: join the region first")
	}
	st := newStream(s, region, req, out)
	if s.isLeaving(ctx) {
		return st.goAway(ctx, errLeaving.Error(), s.returnSpread())
	}
	err := s.serveWatch(ctx, st, issuedAt, req)
	var away goAway
	switch {
	case errors.As(err, &away):
		return st.goAway(ctx, away.Error(), away.spread)
	case s.isLeaving(ctx) && (err == nil || errors.Is(err, context.Canceled)):
		// Without a GoAway, the agent would treat the end of its stream as a failure.
		return st.goAway(ctx, errLeaving.Error(), s.returnSpread())
	}
	return err
}

// serveWatch serves a stream from its session to its end. It returns a goAway if the agent can continue on another
// process.
func (s *Service) serveWatch(ctx context.Context, st *stream, issuedAt int64, req *agentv1.WatchRequest) error {
	region := st.region
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	// If the agent needs a snapshot, reading begins while the session opens.
	session, verdict, err := s.openSession(opening, region, issuedAt, req, func() {
		if st.early == nil {
			st.early = st.startReading(ctx)
		}
	})
	cancel()
	defer func() {
		if st.early != nil {
			st.early.stop()
		}
	}()
	if err != nil {
		return s.openError(region, err)
	}

	s.enterStream(st)
	defer s.leaveStream(st)
	// A cursor outside of the database's history does not count.
	agent := changefeed.Position{Epoch: session.SessionEpoch}
	if verdict.resume == changefeed.Deltas {
		agent = positionOf(req)
	}
	st.sub, st.published = s.tailer.subscribeAgent(region, agent, verdict.head)
	defer st.sub.close()

	if err := st.sendFrame(ctx, "hello", &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Hello{Hello: &agentv1.Hello{
		Epoch:         session.SessionEpoch,
		Fence:         session.SessionFence,
		Resumed:       verdict.resumed,
		LeaseTtl:      durationpb.New(s.cfg.Lease.Length()),
		Limits:        s.cfg.Limits(),
		ServerVersion: s.cfg.Version,
	}}}); err != nil {
		return err
	}

	if verdict.resume == changefeed.Deltas {
		err = st.catchUp(ctx, req)
	} else {
		err = st.sendSnapshot(ctx, verdict.resume.String(), nil)
	}
	if err != nil {
		return s.openError(region, goAwayFor(err))
	}
	return st.sendUntilEnd(ctx)
}

type verdict struct {
	resume  changefeed.Resume
	resumed bool
	head    model.Head
}

// openSession begins or continues the session, and judges the agent's cursor against the primary, in one transaction.
// A fork starts a new epoch and wakes every active app of the region, because earlier acknowledgements no longer
// count. owed is called as soon as it is known that the agent needs a snapshot of the current epoch.
func (s *Service) openSession(ctx context.Context, region string, issuedAt int64, req *agentv1.WatchRequest, owed func()) (session model.Region, v verdict, err error) {
	salt := make([]byte, 16)
	if _, err := rand.Read(salt); err != nil {
		return session, v, fmt.Errorf("read randomness: %w", err)
	}
	now := time.Now().UnixMilli()
	err = s.cfg.Store.Update(ctx, func(tx Tx) error {
		before, err := tx.LockRegion(region)
		if err != nil {
			return fmt.Errorf("lock region: %w", err)
		}
		if issuedAt < before.CredentialNotBefore {
			return rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "the credential was revoked: join the region again")
		}
		head, err := tx.GetHead(region)
		if err != nil {
			return fmt.Errorf("read head: %w", err)
		}
		agent := positionOf(req)
		chainAt, err := tx.ChainAt(region, agent.Revision)
		if err != nil && !errors.Is(err, model.ErrNotFound) {
			return fmt.Errorf("read chain at %d: %w", agent.Revision, err)
		}
		v.resume = changefeed.Judge(agent, head, chainAt)
		if v.resume == changefeed.Snapshot {
			owed()
		}
		if v.resume == changefeed.Fork {
			if agent.Epoch-head.Epoch > maxEpochsAhead {
				return rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "epoch",
					fmt.Sprintf("epoch %d is far above every epoch of this region: delete the agent's inbox file", agent.Epoch))
			}
			// The new epoch must also be above the agent's.
			for head.Epoch <= agent.Epoch || head.Epoch == before.SessionEpoch {
				if head, err = tx.BumpEpoch(region, salt); err != nil {
					return fmt.Errorf("start a new epoch: %w", err)
				}
			}
			apps, err := tx.AppsInRegion(region)
			if err != nil {
				return fmt.Errorf("list apps: %w", err)
			}
			if err := tx.Wake(apps, now, now); err != nil {
				return fmt.Errorf("wake apps: %w", err)
			}
		}
		v.head = head
		session, v.resumed, err = tx.StartSession(region, req.SessionId, s.cfg.Lease.shortest.Milliseconds(), model.Region{
			AgentVersion:  req.GetAgent().GetVersion(),
			AgentRuntime:  req.GetAgent().GetRuntime(),
			AgentFeatures: req.GetAgent().GetFeatures(),
			GatewayURL:    req.GetAgent().GetGatewayUrl(),
		})
		if err != nil {
			return fmt.Errorf("start session: %w", err)
		}
		if s.cfg.Peer != "" {
			if err := tx.PutStream(region, s.cfg.Peer); err != nil {
				return fmt.Errorf("store the process of the stream: %w", err)
			}
		}
		// Reports of another epoch, and reports that a restored database does not have, belong to another history.
		v.resumed = v.resumed && before.SessionEpoch == session.SessionEpoch && before.SessionSequence >= req.ReportedSequence
		if before.Status != windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
			apps, err := tx.AppsInRegion(region)
			if err != nil {
				return fmt.Errorf("list apps: %w", err)
			}
			if err := tx.Wake(apps, now, now); err != nil {
				return fmt.Errorf("wake apps: %w", err)
			}
		}
		if before.Status == windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE {
			notice := model.RegionNotice{MessageID: ident.New("ntf"), RegionID: region, Kind: model.NotifyRegionBack, At: now}
			if err := tx.NotifyRegion(notice); err != nil {
				return fmt.Errorf("notify of the region: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return session, v, fmt.Errorf("open session of region %s: %w", region, err)
	}
	if v.resume == changefeed.Fork {
		s.cfg.Log.WarnContext(ctx, "an agent has a history that the database does not have: starting a new epoch",
			"region", region, "epoch", session.SessionEpoch, "agent_epoch", req.Epoch, "agent_revision", req.ReceivedRevision)
	}
	return session, v, nil
}

func positionOf(req *agentv1.WatchRequest) changefeed.Position {
	return changefeed.Position{Epoch: req.Epoch, Revision: req.ReceivedRevision, Chain: req.Chain}
}

// openError translates errors to which the agent can react, and returns errors that end streams unchanged.
func (s *Service) openError(region string, err error) error {
	var ce *connect.Error
	var away goAway
	switch {
	case errors.As(err, &ce), errors.As(err, &away), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, model.ErrNotFound):
		return rpc.Error(connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "", "the region no longer exists")
	}
	return fmt.Errorf("watch region %s: %w", region, err)
}
