package api

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// logBeat is how often a response is sent while there are no lines. The proto documents it.
	logBeat = 15 * time.Second
	// logPace is how often lines are sent.
	logPace = 250 * time.Millisecond
	// logList is how often the instances of the app are listed.
	logList = 2 * time.Second
	// maxFollowed is the maximum number of instances that one stream follows.
	maxFollowed = 200
)

// FollowLogs sends the lines that instances write. It ends when the instance ends, the caller leaves, its key is no
// longer valid, or the server stops.
func (a logService) FollowLogs(ctx context.Context, req *windlassv1.FollowLogsRequest, out *connect.ServerStream[windlassv1.FollowLogsResponse]) error {
	by, err := callerOf(ctx)
	if err != nil {
		return err
	}
	leave, err := a.hub.enterWithoutTopic(by)
	if err != nil {
		return a.countRefusal(err)
	}
	defer leave()
	f, err := a.newFollower(ctx, by, req)
	if err != nil {
		return err
	}
	defer f.leaveAll()
	if a.cfg.Trail != nil {
		a.cfg.Trail.Note(trail.Entry{
			WorkspaceID: by.WorkspaceID, Actor: by.Name, ActorID: by.ID, Source: admission.ClientKey(rpc.ClientOf(ctx)), Procedure: by.Procedure,
			ResourceKind: f.kind, ResourceID: f.id, Outcome: trail.Done,
		}, nowMillis())
	}
	send := func(res *windlassv1.FollowLogsResponse) error {
		res.SentAt = nowMillis()
		if err := out.Send(res); err != nil {
			return fmt.Errorf("send logs of %s %s: %w", f.kind, f.id, err)
		}
		return nil
	}
	return a.followLogs(ctx, by, f, req.GetOnce(), send)
}

func (a logService) followLogs(ctx context.Context, by caller, f *follower, once bool, send func(*windlassv1.FollowLogsResponse) error) error {
	good, beat, pace, list := time.NewTicker(a.cfg.KeyCacheTTL), time.NewTicker(logBeat), time.NewTicker(logPace), time.NewTicker(logList)
	defer func() {
		for _, t := range []*time.Ticker{good, beat, pace, list} {
			t.Stop()
		}
	}()
	if err := f.list(ctx); err != nil {
		return err
	}
	// The first lines are sent after all regions have answered, so that they are sorted by time.
	for f.countReading() > 0 {
		select {
		case r := <-f.answers:
			f.begin(r) //nolint:contextcheck // the shared feed of an instance outlives each reader
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// The first response is sent even without lines, so that the caller sees that the stream is open.
	if err := send(f.take()); err != nil || once || f.isOver() {
		return err
	}
	for {
		select {
		case r := <-f.answers:
			f.begin(r) //nolint:contextcheck // the shared feed of an instance outlives each reader
		case <-pace.C:
			res := f.take()
			if len(res.Lines) == 0 && len(res.Notes) == 0 && len(res.Positions) == 0 {
				continue
			}
			if err := send(res); err != nil {
				return err
			}
			beat.Reset(logBeat)
			if f.isOver() {
				return nil
			}
		case <-list.C:
			// An unreachable database does not end the stream, because agents can still answer.
			if err := f.list(ctx); err != nil && !a.cfg.IsUnavailable(err) {
				return err
			}
		case <-beat.C:
			if err := send(&windlassv1.FollowLogsResponse{}); err != nil {
				return err
			}
		case <-good.C:
			if err := a.stillIn(ctx, by); err != nil {
				return err
			}
		case <-a.hub.stopped:
			return rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", "the server is stopping: follow again")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// newFollower checks the request, and finds the app or instance to follow.
func (a logService) newFollower(ctx context.Context, by caller, req *windlassv1.FollowLogsRequest) (*follower, error) {
	if (req.GetApp() == "") == (req.GetInstance() == "") {
		return nil, apierr.Invalid("app", "set either app or instance")
	}
	f := &follower{
		logService: a, by: by, req: req, resumed: len(req.GetPositions()) > 0, first: true,
		known: map[string]*windlassv1.LogPosition{}, followed: map[string]*followed{},
		asking: map[string]bool{}, silent: map[string]bool{}, old: map[string]bool{}, answers: make(chan logAnswer),
	}
	var err error
	if f.grep, err = regexp.Compile(req.GetGrep()); err != nil {
		return nil, apierr.Invalid("grep", fmt.Sprintf("grep is not a regular expression of RE2: %v", err))
	}
	for _, p := range req.GetPositions() {
		f.known[p.GetInstance()] = p.GetPosition()
	}
	f.filter.WorkspaceID = by.WorkspaceID
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		if req.GetInstance() != "" {
			i, err := deploymentService(a).findInstance(tx, by.WorkspaceID, req.GetInstance())
			f.kind, f.id, f.filter.DeploymentID, f.filter.RegionID = "instance", i.ID, i.DeploymentID, i.RegionID
			return err
		}
		app, err := a.findApp(tx, by.WorkspaceID, req.GetApp(), true)
		if err != nil {
			return err
		}
		f.kind, f.id, f.filter.AppID = "app", app.ID, app.ID
		if req.GetRegion() == "" {
			return nil
		}
		r, err := a.findRegion(tx, by, req.GetRegion())
		f.filter.RegionID = r.ID
		return err
	})
	if err != nil {
		return nil, err
	}
	f.ctx, f.stop = context.WithCancel(ctx)
	return f, nil
}

// listInstances lists the instances to follow, their regions by id, and the region id of each instance.
func (f *follower) listInstances(ctx context.Context) (views []*windlassv1.Instance, regions map[string]model.Region, of map[string]string, err error) {
	of = map[string]string{}
	err = f.cfg.Store.View(ctx, func(tx Tx) error {
		var rows []model.Instance
		page := model.Page{Limit: readPage}
		for {
			got, err := tx.ListInstances(f.filter, page)
			if err != nil {
				return fmt.Errorf("list instances: %w", err)
			}
			for _, i := range got {
				if f.kind == "instance" && i.ID != f.id || f.req.GetRole() != "" && i.Role != f.req.GetRole() {
					continue
				}
				rows = append(rows, i)
			}
			if len(got) < page.Limit {
				break
			}
			page.After = got[len(got)-1].ID
		}
		ids := map[string]bool{}
		for _, i := range rows {
			of[i.ID], ids[i.RegionID] = i.RegionID, true
		}
		var err error
		if regions, err = f.regionsByID(tx, ids); err != nil {
			return err
		}
		views, err = deploymentService{f.server}.instanceViews(tx, rows)
		return err
	})
	if want := f.req.GetVersion(); want != 0 {
		views = slices.DeleteFunc(views, func(v *windlassv1.Instance) bool { return v.GetVersion() != want })
	}
	return views, regions, of, err
}

// isUnreachable reports whether err means that the region did not answer. Other errors are answers of its agent.
func isUnreachable(err error) bool {
	return errors.Is(err, model.ErrAgentUnreachable) || errors.Is(err, context.DeadlineExceeded)
}
