package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPace(t *testing.T) {
	t.Parallel()
	const slow = time.Minute
	least := Least{Rate: 1000, After: 10 * time.Second}

	t.Run("the gateway waits for a client that sends nothing until the rate counts", func(t *testing.T) {
		t.Parallel()
		p := Of(least)
		require.Equal(t, 10*time.Second, p.Left(0, slow))
		p.Moved(0, 4*time.Second)
		require.Equal(t, 6*time.Second, p.Left(0, slow))
		p.Moved(0, time.Hour)
		require.Equal(t, time.Millisecond, p.Left(0, slow))
	})
	t.Run("each byte adds time", func(t *testing.T) {
		t.Parallel()
		p := Of(least)
		p.Moved(5500, 0)
		require.Equal(t, 15500*time.Millisecond, p.Left(0, slow))
		require.Equal(t, 16*time.Second, p.Left(500, slow))
		p.Moved(1<<40, 0)
		require.Equal(t, slow, p.Left(0, slow))
	})
	t.Run("a client that sends one byte a second runs out of time", func(t *testing.T) {
		t.Parallel()
		p, waits := Of(least), 0
		for ; p.Left(0, slow) >= time.Second; waits++ {
			p.Moved(1, time.Second)
		}
		require.Equal(t, 10, waits)
		require.Equal(t, 10*time.Second, p.Waited())
	})
	t.Run("without a rate, the time before earlier bytes does not count", func(t *testing.T) {
		t.Parallel()
		p := Of(Least{After: time.Second})
		p.Moved(1, time.Hour)
		require.Equal(t, slow, p.Left(0, slow))
	})
}
