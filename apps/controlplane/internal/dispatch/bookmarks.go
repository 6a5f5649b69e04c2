package dispatch

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// bookmarkRounds is the number of rounds of bookmarks in Config.Bookmark. With rounds, an idle process wakes up far
// less often than with a timer for each stream.
const bookmarkRounds = 20

// requestBookmarks signals streams when to send a bookmark, until ctx ends.
func (s *Service) requestBookmarks(ctx context.Context) {
	ticker := time.NewTicker(max(s.cfg.Bookmark/bookmarkRounds, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.signalBookmarks(time.Now())
		}
	}
}

// signalBookmarks signals the streams whose bookmarks are due, in the order of their regions.
func (s *Service) signalBookmarks(now time.Time) {
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
		default: // the stream has not sent the previous bookmark yet
		}
	}
}

// bookmarkDelay returns 1.2 to 1.45 times Config.Bookmark, so that two bookmarks are 12 to 15 s apart. An agent whose
// next sign of life is due soon sends it in answer to a bookmark, so that many agents send theirs together. With the
// longest lease, of a minute, agents send one without a bookmark after 16 s at the earliest.
func (s *Service) bookmarkDelay() time.Duration {
	return time.Duration((1.2 + 0.25*s.cfg.Random()) * float64(s.cfg.Bookmark))
}
