package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/rpc"
)

// A load balancer spreads connections when they are made, and an agent's lives for weeks: after
// a rolling restart the process that was restarted last has no stream, and the others have all.
// So each process computes its own share of the streams, and sends away those above it. No
// process decides for all. With a balancer that prefers the process with the fewest
// connections, one step is enough. With a round-robin balancer some steps are needed, because
// the streams that were sent away come back in equal parts.

// goAway ends a stream whose agent should connect to another process, after a random
// part of spread.
type goAway struct {
	error
	spread time.Duration
}

var (
	errLeaving = errors.New("this server is leaving")
	errUneven  = errors.New("other servers have fewer streams")
)

// Each agent that comes back costs a transaction and some processor time, which docs/performance.md states. At one agent per
// 2 ms they keep less than a core busy: 1,000 are spread over 2 s.
// A region's changes wait meanwhile, so that few agents come back sooner.
const (
	spreadEach = 2 * time.Millisecond
	minSpread  = 100 * time.Millisecond
	maxSpread  = 10 * time.Second
)

func spreadOf(streams int) time.Duration {
	return min(max(time.Duration(streams)*spreadEach, minSpread), maxSpread)
}

// returnSpread returns the time over which agents spread their return when this process leaves.
func (s *Service) returnSpread() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return spreadOf(s.leavers)
}

// isLeaving reports whether the process, or the server that the call came through, stops.
func (s *Service) isLeaving(ctx context.Context) bool {
	select {
	case <-s.draining:
		return true
	default:
		return rpc.Stopping(ctx)
	}
}

// seenWithin is how long a process counts after its last beat: two beats. A process that
// is gone and still counted would make others send streams away for nothing.
const seenWithin = 10 * time.Second

// shedExcess sends away the streams above this process's share, until ctx ends.
func (s *Service) shedExcess(ctx context.Context) {
	var peers []string
	changed, failing := time.Now(), false
	for backoff.Sleep(ctx, s.cfg.Even/2+time.Duration(s.cfg.Random()*float64(s.cfg.Even))) == nil {
		now, all, err := s.peerStreams(ctx)
		if err != nil {
			if ctx.Err() == nil && !failing {
				s.cfg.Log.WarnContext(ctx, "cannot count the agents' streams, will be tried again", "error", err)
			}
			failing = true
			continue
		}
		failing = false
		if !slices.Equal(peers, now) {
			peers, changed = now, time.Now()
		}
		if time.Since(changed) >= s.cfg.EvenAfter {
			s.sendAway(ctx, all, len(peers))
		}
	}
}

// peerStreams returns all processes, this one included, and how many streams they have together.
func (s *Service) peerStreams(ctx context.Context) (peers []string, streams int, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Even)
	defer cancel()
	err = s.cfg.Store.View(ctx, func(tx Tx) (err error) {
		var rows []model.Peer
		if rows, err = tx.ListPeers(seenWithin.Milliseconds()); err != nil {
			return err
		}
		peers = peers[:0]
		for _, p := range rows {
			peers = append(peers, p.ID)
		}
		streams, err = tx.CountStreams()
		return err
	})
	return peers, streams, err
}

func (s *Service) sendAway(ctx context.Context, all, peers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var staying []string
	for region, st := range s.streams {
		if !st.leaving {
			staying = append(staying, region)
		}
	}
	n := excessStreams(len(staying), all, peers)
	if n == 0 || s.drained {
		return
	}
	s.cfg.Log.InfoContext(ctx, "other servers have fewer streams: sending some agents there", "streams", len(s.streams), "of", all, "servers", peers, "sent_away", n)
	spread, left := spreadOf(n), n
	slices.Sort(staying)
	at := int(s.cfg.Random() * float64(len(staying))) // not always the same ones
	for _, region := range slices.Concat(staying[at:], staying[:at]) {
		if left == 0 {
			break
		}
		st := s.streams[region]
		select {
		case st.away <- goAway{errUneven, spread}:
			st.leaving = true
			left--
		default:
		}
	}
}

// excessStreams returns how many of a process's streams are above its share, 0 when it is near
// enough. With small numbers, chance alone makes a quarter above, which is no reason to
// move streams.
func excessStreams(own, all, peers int) int {
	if peers < 2 {
		return 0
	}
	share := (max(all, own) + peers - 1) / peers
	if own <= share+share/4+2 {
		return 0
	}
	return own - share
}
