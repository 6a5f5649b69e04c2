package dispatch

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// together is how many times bookmarks are handed out in the shortest time between two of a
// stream. A process that rests pays for waking up: 1,000 streams with timers of their own
// have it do so 70 times a second, and in rounds twice, while the database is away too.
const together = 20

// bookmarks tells streams when to send one, until ctx ends.
func (s *Service) bookmarks(ctx context.Context) {
	ticker := time.NewTicker(max(s.cfg.Bookmark/together, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.handOut(time.Now())
		}
	}
}

// handOut tells those that are due, in an order that does not change from run to run.
func (s *Service) handOut(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []*stream
	for _, st := range s.streams {
		if !now.Before(st.dueAt) {
			due = append(due, st)
		}
	}
	slices.SortFunc(due, func(a, b *stream) int { return cmp.Compare(a.region, b.region) })
	for _, st := range due {
		st.dueAt = now.Add(s.bookmarkDelay())
		select {
		case st.due <- struct{}{}:
		default: // it has yet to send the one before
		}
	}
}

// bookmarkDelay is 1.2 to 1.45 times the shortest that is allowed: an agent whose own sign
// of life is due before long gives it in answer to a bookmark, so that those, too, come
// together: with the longest lease, of a minute, it would come by itself after 16 s at the
// earliest. Between two bookmarks are thus 12 to 15 s, and never 20.
func (s *Service) bookmarkDelay() time.Duration {
	return time.Duration((1.2 + 0.25*s.cfg.Random()) * float64(s.cfg.Bookmark))
}
