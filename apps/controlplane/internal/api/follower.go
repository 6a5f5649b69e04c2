package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/logrelay"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// follower is one stream of FollowLogs. Only one goroutine uses it. Other goroutines send answers to it over a
// channel.
//
// It reads a new instance once, from the position in the request. Then it joins the feed of the instance,
// which all streams of this process share.
type follower struct {
	logService
	by     caller
	req    *windlassv1.FollowLogsRequest
	grep   *regexp.Regexp
	filter model.InstanceFilter
	// kind and id name the followed object: an app or an instance.
	kind, id string
	// resumed means that the request has positions. first means that no instance was listed yet.
	resumed, first bool
	ctx            context.Context
	stop           context.CancelFunc

	// known are positions of instances, including instances that are not followed now.
	known    map[string]*windlassv1.LogPosition
	followed map[string]*followed
	// These are sets of region ids. asking has regions with a running request for new instances. silent has regions
	// that do not answer. old has regions whose agents cannot follow logs.
	asking, silent, old map[string]bool
	// more is true after a note has said that some instances are not followed.
	more    bool
	answers chan logAnswer

	// lines and notes are sent with the next response.
	lines []*windlassv1.LogLine
	notes []*windlassv1.LogNote
	moved map[string]bool
}

type followed struct {
	view     *windlassv1.Instance
	regionID string
	// begin is the position of the first read, nil after that read.
	begin *agentv1.FollowedInstance
	tap   *logrelay.Tap // nil until the first read
}

// logAnswer is a region's answer to the first read of new instances.
type logAnswer struct {
	regionID string
	logs     []*agentv1.InstanceLog
	err      error
}

func (f *follower) leaveAll() {
	f.stop()
	for _, in := range f.followed {
		in.stopFollowing()
	}
}

func (in *followed) stopFollowing() {
	if in.tap != nil {
		in.tap.Leave()
	}
}

func (f *follower) countReading() int { return len(f.asking) }

// isOver reports whether nothing is followed, and no new instance can appear.
func (f *follower) isOver() bool { return f.kind == "instance" && len(f.followed) == 0 }

// list updates the followed instances to the instances that exist now.
func (f *follower) list(ctx context.Context) error {
	views, regions, of, err := f.listInstances(ctx)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, v := range views {
		there[v.GetId()] = true
		if in := f.followed[v.GetId()]; in != nil {
			in.view = v
			continue
		}
		region := regions[of[v.GetId()]]
		if !slices.Contains(region.AgentFeatures, agentv1.Feature_FEATURE_FOLLOW_LOGS.String()) {
			if !f.old[region.ID] {
				f.old[region.ID] = true
				f.sendNote(&windlassv1.LogNote{
					Kind: windlassv1.LogNote_KIND_UNSUPPORTED, Region: v.GetRegion(),
					Message: fmt.Sprintf("the agent of region %s (%s) cannot follow logs: update it, or read the last lines of one instance", v.GetRegion(), cmp.Or(region.AgentVersion, "unknown version")),
				})
			}
			continue
		}
		delete(f.old, region.ID)
		if len(f.followed) >= maxFollowed {
			if !f.more {
				f.more = true
				f.sendNote(&windlassv1.LogNote{
					Kind:    windlassv1.LogNote_KIND_NOT_FOLLOWED,
					Message: fmt.Sprintf("only %d of %d instances are followed: name a region, role or version in the request", maxFollowed, len(views)),
				})
			}
			continue
		}
		f.followed[v.GetId()] = &followed{view: v, regionID: region.ID, begin: f.firstPosition(v.GetId())}
		f.sendNote(&windlassv1.LogNote{Kind: windlassv1.LogNote_KIND_BEGAN, Instance: v.GetId(), Region: v.GetRegion(), About: v})
	}
	for _, id := range slices.Sorted(maps.Keys(f.followed)) {
		if in := f.followed[id]; !there[id] {
			f.drain(id, in)
			f.endInstance(id, in)
		}
	}
	f.first = false
	f.readNew()
	return nil
}

// firstPosition returns the position from which an instance is first read.
func (f *follower) firstPosition(id string) *agentv1.FollowedInstance {
	begin := &agentv1.FollowedInstance{InstanceId: id}
	switch at := f.known[id]; {
	case at != nil:
		begin.After = at
	case f.resumed || !f.first:
		begin.TailLines = -1
	default:
		begin.TailLines, begin.Since = f.req.GetTailLines(), f.req.GetSince()
	}
	return begin
}

func (f *follower) endInstance(id string, in *followed) {
	in.stopFollowing()
	delete(f.followed, id)
	delete(f.known, id)
	f.sendNote(&windlassv1.LogNote{Kind: windlassv1.LogNote_KIND_ENDED, Instance: id, Region: in.view.GetRegion(), Message: "the instance is gone"})
}

// readNew sends requests to regions for instances that were not read yet. A region has at most one running request.
func (f *follower) readNew() {
	due := map[string][]*agentv1.FollowedInstance{}
	for _, id := range slices.Sorted(maps.Keys(f.followed)) {
		if in := f.followed[id]; in.begin != nil && !f.asking[in.regionID] {
			due[in.regionID] = append(due[in.regionID], in.begin)
		}
	}
	for region, instances := range due {
		f.asking[region] = true
		go func() {
			logs, err := f.logs.Read(f.ctx, region, instances)
			select {
			case f.answers <- logAnswer{regionID: region, logs: logs, err: err}:
			case <-f.ctx.Done():
			}
		}()
	}
}

// begin takes the first lines of instances, and joins their feeds.
func (f *follower) begin(a logAnswer) {
	delete(f.asking, a.regionID)
	f.noteAnswer(a.regionID, a.err)
	for _, log := range a.logs {
		in := f.followed[log.GetInstanceId()]
		if in == nil || in.begin == nil {
			continue
		}
		at := log.GetNext()
		switch {
		case log.GetGone():
			continue // the instance is requested again while it is listed
		case at == nil && in.begin.After != nil:
			at = in.begin.After
		case at == nil:
			at = &windlassv1.LogPosition{} // the instance has written nothing yet
		}
		if !f.joinInstance(log.GetInstanceId(), in, at) {
			continue
		}
		if log.GetLost() > 0 || log.GetLostMore() {
			f.noteLost(in, log.GetLost(), log.GetLostMore())
		}
		for _, l := range log.GetLines() {
			l.Instance = log.GetInstanceId()
		}
		f.add(log.GetInstanceId(), log.GetLines(), at)
	}
}

func (f *follower) joinInstance(id string, in *followed, at *windlassv1.LogPosition) bool {
	tap, err := f.logs.Join(in.regionID, id, at)
	if err != nil {
		if !f.more {
			f.more = true
			f.sendNote(&windlassv1.LogNote{Kind: windlassv1.LogNote_KIND_NOT_FOLLOWED, Message: err.Error() + ": try again later"})
		}
		return false
	}
	in.tap, in.begin = tap, nil
	return true
}

// drain takes the lines that an instance wrote since the last call.
func (f *follower) drain(id string, in *followed) {
	if in.tap == nil {
		return
	}
	n := in.tap.Next()
	if n.Lost > 0 || n.LostMore {
		f.noteLost(in, n.Lost, n.LostMore)
	}
	f.add(id, n.Lines, n.After)
	if n.Gone {
		// Its agent does not know the instance, or not yet. The instance is read again while it is listed.
		in.stopFollowing()
		in.tap, in.begin = nil, f.firstPosition(id)
	}
}

func (f *follower) add(id string, lines []*windlassv1.LogLine, at *windlassv1.LogPosition) {
	for _, l := range lines {
		if f.grep.MatchString(l.GetText()) {
			f.lines = append(f.lines, l)
		}
	}
	if at != nil {
		f.known[id] = at
		if f.moved == nil {
			f.moved = map[string]bool{}
		}
		f.moved[id] = true
	}
}

func (f *follower) sendNote(n *windlassv1.LogNote) { f.notes = append(f.notes, n) }

func (f *follower) noteLost(in *followed, n int64, more bool) {
	text := fmt.Sprintf("%d lines are missing", n)
	switch {
	case more && n > 0:
		text = fmt.Sprintf("more than %d lines are missing", n)
	case more:
		text = "an unknown number of lines is missing"
	case n == 1:
		text = "1 line is missing"
	}
	f.sendNote(&windlassv1.LogNote{
		Kind: windlassv1.LogNote_KIND_LOST, Instance: in.view.GetId(), Region: in.view.GetRegion(), Lines: n,
		Message: text + ": the instance writes faster than its lines are sent or kept, or they were read too slowly",
	})
}

// noteAnswer records whether a region answered, and adds a note when that changes.
func (f *follower) noteAnswer(regionID string, err error) {
	if (err != nil) == f.silent[regionID] {
		return
	}
	name := ""
	for _, in := range f.followed {
		if in.regionID == regionID {
			name = in.view.GetRegion()
		}
	}
	if err == nil {
		delete(f.silent, regionID)
		f.sendNote(&windlassv1.LogNote{Kind: windlassv1.LogNote_KIND_BACK, Region: name, Message: fmt.Sprintf("region %s answers again", name)})
		return
	}
	f.silent[regionID] = true
	why := fmt.Sprintf("region %s does not answer: retrying", name)
	if !isUnreachable(err) {
		why = fmt.Sprintf("region %s cannot return its logs: %v", name, err)
	}
	f.sendNote(&windlassv1.LogNote{Kind: windlassv1.LogNote_KIND_UNREACHABLE, Region: name, Message: why})
}

// take returns the lines, by time, and the notes since the last response.
func (f *follower) take() *windlassv1.FollowLogsResponse {
	for _, id := range slices.Sorted(maps.Keys(f.followed)) {
		in := f.followed[id]
		if in.tap != nil {
			if !f.asking[in.regionID] {
				f.noteAnswer(in.regionID, in.tap.Err())
			}
			f.drain(id, in)
		}
	}
	res := &windlassv1.FollowLogsResponse{Lines: f.lines, Notes: f.notes}
	for _, id := range slices.Sorted(maps.Keys(f.moved)) {
		if at := f.known[id]; at != nil {
			res.Positions = append(res.Positions, &windlassv1.InstancePosition{Instance: id, Position: at})
		}
	}
	slices.SortStableFunc(res.Lines, func(x, y *windlassv1.LogLine) int { return cmp.Compare(x.GetAt(), y.GetAt()) })
	f.lines, f.notes, f.moved = nil, nil, nil
	return res
}
