package kubernetes

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLocksExcludeAndAreForgotten(t *testing.T) {
	var l locks
	unlock := l.alone("a")
	got := make(chan string, 2)
	both := make(chan struct{}, 2)
	var ended sync.WaitGroup
	for range 2 {
		ended.Go(func() {
			let := l.together("a")
			defer let()
			got <- "together"
			<-both
		})
	}
	l.alone("b")() // others are not held up
	require.Empty(t, got)
	unlock()
	require.Equal(t, []string{"together", "together"}, []string{<-got, <-got}, "both hold it now")
	both <- struct{}{}
	both <- struct{}{}
	l.alone("a")()
	ended.Wait()
	require.Empty(t, l.held)
}
