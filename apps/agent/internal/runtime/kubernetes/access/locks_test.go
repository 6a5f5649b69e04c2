package access

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLocks_ExcludeAndAreDropped(t *testing.T) {
	var l Locks
	unlock := l.Exclusive("a")
	got := make(chan string, 2)
	both := make(chan struct{}, 2)
	var ended sync.WaitGroup
	for range 2 {
		ended.Go(func() {
			let := l.Shared("a")
			defer let()
			got <- "together"
			<-both
		})
	}
	l.Exclusive("b")() // another name is not locked
	require.Empty(t, got)
	unlock()
	require.Equal(t, []string{"together", "together"}, []string{<-got, <-got}, "both hold the lock")
	both <- struct{}{}
	both <- struct{}{}
	l.Exclusive("a")()
	ended.Wait()
	require.Empty(t, l.held)
}
