package peers

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
)

// Loads of scaled apps belong to the process that has the region's stream. A load balancer may bring them to another
// process, which then passes them on:
//
//	Report ─> PassLoads ─> the process that took the region's last loads; at first: every peer
//	                          │
//	                          └─ TakeLoads ─> the answer names the regions whose stream is there
//
// So no process reads from the database where a stream is. Loads that cannot be passed on are dropped, because the
// agent sends newer ones within 30 s. If no peer took a region's loads, further loads of the region are dropped for
// searchAgain. Otherwise they would all go to every peer while its agent reports without a stream. A peer never passes
// on loads that it gets from a peer.

// maxLoadItems bounds the loads in one call together with their deployments, so that it stays below the receiver's
// limits of bytes and elements.
const maxLoadItems = 2000

// searchAgain is how long loads of a region are dropped after no peer took loads of the region.
const searchAgain = 10 * time.Second

// maxLoads bounds the apps whose loads wait for one peer.
const maxLoads = 50_000

// PassLoads passes loads of a region on to the process that has the region's stream. It returns how many loads it
// dropped, which are all of them if no other process is known. It never blocks.
func (s *Service) PassLoads(region string, loads []*agentv1.LoadReport) (dropped int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	peer, search := s.takers.takerOf(region, time.Now())
	if to := s.senders[peer]; to != nil {
		return to.loads.add(region, loads)
	}
	dropped = len(loads)
	if !search {
		return dropped
	}
	for _, id := range slices.Sorted(maps.Keys(s.senders)) {
		dropped = min(dropped, s.senders[id].loads.add(region, loads))
	}
	return dropped
}

// takers has the peer that took a region's last loads, by region.
type takers struct {
	mu sync.Mutex
	by map[string]string
	// none has when a peer last refused the loads of a region without a known taker.
	none map[string]time.Time
}

// takerOf returns the peer that took the region's last loads, or "". search reports whether to ask all peers then.
func (t *takers) takerOf(region string, now time.Time) (peer string, search bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.by[region], now.Sub(t.none[region]) >= searchAgain
}

// noteAnswer records an answer of the peer. Without an answer, taken is empty.
func (t *takers) noteAnswer(peer string, sent []*peerv1.RegionLoads, taken []string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.none, func(_ string, at time.Time) bool { return now.Sub(at) >= searchAgain })
	for _, r := range sent {
		switch {
		case slices.Contains(taken, r.RegionId):
			t.by[r.RegionId] = peer
			delete(t.none, r.RegionId)
		case t.by[r.RegionId] == peer:
			delete(t.by, r.RegionId) // the stream has moved: the next load goes to all peers
		case t.by[r.RegionId] == "":
			t.none[r.RegionId] = now
		}
	}
}

// forgetPeer drops a peer that is gone.
func (t *takers) forgetPeer(peer string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.by, func(_, by string) bool { return by == peer })
}

// waitingLoads are the newest loads that wait for one peer.
type waitingLoads struct {
	signal chan struct{} // buffer of one

	mu sync.Mutex
	// by has the loads by region, then by app.
	by map[string]map[string]*agentv1.LoadReport
	n  int
}

func newWaitingLoads() waitingLoads {
	return waitingLoads{signal: make(chan struct{}, 1), by: map[string]map[string]*agentv1.LoadReport{}}
}

// add replaces older loads of the same app and region that wait. It returns how many loads it dropped, because too many
// wait.
func (w *waitingLoads) add(region string, loads []*agentv1.LoadReport) (dropped int) {
	w.mu.Lock()
	for _, l := range loads {
		in := w.by[region]
		if have := in[l.AppId]; have != nil && have.At > l.At {
			continue
		}
		if in[l.AppId] == nil {
			if w.n >= maxLoads {
				dropped++
				continue
			}
			w.n++
		}
		if in == nil {
			in = map[string]*agentv1.LoadReport{}
			w.by[region] = in
		}
		in[l.AppId] = l
	}
	w.mu.Unlock()
	select {
	case w.signal <- struct{}{}:
	default:
	}
	return dropped
}

// take returns the loads for one call, in the order of regions and apps. more reports whether loads are left.
func (w *waitingLoads) take() (out []*peerv1.RegionLoads, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	items := 0
	for _, region := range slices.Sorted(maps.Keys(w.by)) {
		next := &peerv1.RegionLoads{RegionId: region}
		for _, app := range slices.Sorted(maps.Keys(w.by[region])) {
			l := w.by[region][app]
			if items += 1 + len(l.Deployments); items > maxLoadItems && len(out)+len(next.Loads) > 0 {
				more = true
				break
			}
			next.Loads = append(next.Loads, l)
			delete(w.by[region], app)
			w.n--
		}
		if len(w.by[region]) == 0 {
			delete(w.by, region)
		}
		if len(next.Loads) > 0 {
			out = append(out, next)
		}
		if more {
			break
		}
	}
	return out, more
}

// runLoads sends loads until ctx ends. It is apart from run, so that loads delay no nudge.
func (to *sender) runLoads(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-to.loads.signal:
		}
		for more := true; more && ctx.Err() == nil; {
			var loads []*peerv1.RegionLoads
			if loads, more = to.loads.take(); len(loads) > 0 {
				to.sendLoads(ctx, loads)
			}
		}
	}
}

func (to *sender) sendLoads(ctx context.Context, loads []*peerv1.RegionLoads) {
	ctx, cancel := context.WithTimeout(ctx, to.svc.cfg.CallTimeout)
	defer cancel()
	res, err := to.client.TakeLoads(ctx, &peerv1.TakeLoadsRequest{Regions: loads})
	to.svc.takers.noteAnswer(to.peer.ID, loads, res.GetTaken(), time.Now())
	for _, r := range loads {
		outcome := "elsewhere"
		switch {
		case err != nil:
			outcome = "error"
		case slices.Contains(res.GetTaken(), r.RegionId):
			outcome = "ok"
		}
		to.svc.metrics.loads.WithLabelValues(outcome).Add(float64(len(r.Loads)))
	}
	if err != nil {
		to.svc.cfg.Log.DebugContext(ctx, "cannot pass loads on to a peer", "peer", to.peer.ID, "error", err)
	}
}
