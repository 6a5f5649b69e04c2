package joint_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/joint"
)

type key struct{}

func TestItEndsWithTheLastOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, leave := context.WithCancel(context.WithValue(t.Context(), key{}, "first"))
		second, leaveToo := context.WithCancel(t.Context())
		ctx, cancel := joint.Context(time.Hour, first, second)
		defer cancel()
		require.Equal(t, "first", ctx.Value(key{}))
		leave()
		synctest.Wait()
		require.NoError(t, ctx.Err())
		leaveToo()
		synctest.Wait()
		require.ErrorIs(t, ctx.Err(), context.Canceled)
	})
}

func TestItEndsInTimeAndWhenItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := joint.Context(time.Minute, t.Context(), t.Context())
		defer cancel()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)

		ctx, cancel = joint.Context(time.Minute, t.Context())
		cancel()
		require.ErrorIs(t, ctx.Err(), context.Canceled)
	})
}
