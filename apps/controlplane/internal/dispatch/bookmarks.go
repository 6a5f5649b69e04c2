package dispatch

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// together is how many rounds of bookmarks there are in Config.Bookmark. Rounds wake an idle
// process far less often than a timer for each stream would.
const together = 20

// requestBookmarks tells streams when to send one, until ctx ends.
func (s *Service) requestBookmarks(ctx context.Context) {
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

// handOut signals the streams whose bookmarks are due, in the order of their regions.
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

// bookmarkDelay returns 1.2 to 1.45 times Config.Bookmark, so that 12 to 15 s are between two
// bookmarks. An agent whose own sign of life is due soon gives it in answer to a bookmark, and
// those of many agents come together. With the longest lease, of a minute, it would come by
// itself after 16 s at the earliest.
func (s *Service) bookmarkDelay() time.Duration {
	return time.Duration((1.2 + 0.25*s.cfg.Random()) * float64(s.cfg.Bookmark))
}
