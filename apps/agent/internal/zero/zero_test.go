package zero_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

const (
	file = "zero.json"
	dep  = "dep_1"
)

var begin = time.Unix(1_700_000_000, 0)

func assignment(replicas, wake int32) *agentv1.DeploymentState {
	return &agentv1.DeploymentState{
		Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: &agentv1.Deployment{Id: dep, Replicas: replicas, Wake: wake},
	}
}

func open(t *testing.T, files disk.Files) *zero.Zero {
	t.Helper()
	z, err := zero.Open(files, file)
	require.NoError(t, err)
	return z
}

func TestPhase(t *testing.T) {
	asleep := assignment(0, 3)
	z := zero.New()
	require.Equal(t, zero.Awake, z.Phase(dep, nil))
	require.Equal(t, zero.Awake, z.Phase(dep, assignment(0, 0)), "a deployment without wake does not go to zero")
	require.Equal(t, zero.Awake, z.Phase(dep, assignment(2, 3)))
	require.False(t, z.Wake(dep, assignment(2, 3), begin), "an awake deployment cannot be woken")
	require.Equal(t, zero.Asleep, z.Phase(dep, asleep))
	z.Note(dep, asleep, begin)
	require.True(t, z.Wake(dep, asleep, begin))
	require.False(t, z.Wake(dep, asleep, begin), "a woken deployment cannot be woken again")
	require.Equal(t, zero.Waking, z.Phase(dep, asleep))
	n, woken := z.Replicas(dep, asleep)
	require.EqualValues(t, 3, n)
	require.True(t, woken)
	z.Note(dep, asleep, begin)
	require.Equal(t, zero.Waking, z.Phase(dep, asleep), "a generation without replicas is not an answer")
	z.Ready(dep, "app_1", begin.Add(40*time.Second))
	require.Equal(t, zero.Awake, z.Phase(dep, asleep))
	require.Equal(t, 40*time.Second, z.StartTime("app_1"))
	z.Note(dep, assignment(2, 3), begin)
	require.Equal(t, zero.Asleep, z.Phase(dep, asleep), "the control plane knew of the wake")
}

func TestPhase_GenerationWithoutWakeEndsAWake(t *testing.T) {
	asleep, shut := assignment(0, 1), assignment(0, 0)
	z := zero.New()
	z.Note(dep, asleep, begin)
	require.True(t, z.Wake(dep, asleep, begin))
	z.Note(dep, shut, begin)
	n, woken := z.Replicas(dep, shut)
	require.Zero(t, n)
	require.False(t, woken)
	require.False(t, z.Wake(dep, shut, begin), "no request may wake the deployment")
	z.Note(dep, asleep, begin)
	require.Equal(t, zero.Asleep, z.Phase(dep, asleep), "the earlier wake is forgotten")
}

func TestKeep(t *testing.T) {
	t.Run("saves marks and start times for the next process", func(t *testing.T) {
		files := disk.NewMemory()
		z := open(t, files)
		z.Note(dep, assignment(0, 1), begin)
		require.True(t, z.Wake(dep, assignment(0, 1), begin))
		require.Equal(t, zero.Asleep, open(t, files).Phase(dep, assignment(0, 1)), "the wake was not stored yet")
		require.NoError(t, z.Keep())
		z = open(t, files)
		require.Equal(t, zero.Waking, z.Phase(dep, assignment(0, 1)))
		z.Ready(dep, "app_1", begin.Add(time.Second))
		require.NoError(t, z.Keep())
		z = open(t, files)
		require.Equal(t, time.Second, z.StartTime("app_1"))
		nothing := func(string) bool { return false }
		z.Forget(nothing, nothing)
		require.NoError(t, z.Keep())
		z = open(t, files)
		require.Zero(t, z.StartTime("app_1"))
		require.Equal(t, zero.Asleep, z.Phase(dep, assignment(0, 1)))
	})
	t.Run("writes again after a failed write", func(t *testing.T) {
		files := &broken{Files: disk.NewMemory(), err: errors.New("the disk is full")}
		z := open(t, files)
		require.True(t, z.Wake(dep, assignment(0, 1), begin))
		require.ErrorIs(t, z.Keep(), files.err)
		files.err = nil
		require.NoError(t, z.Keep())
		require.Equal(t, zero.Waking, open(t, files).Phase(dep, assignment(0, 1)))
	})
	t.Run("a file that cannot be read is an error", func(t *testing.T) {
		files := disk.NewMemory()
		require.NoError(t, files.Replace(file, []byte("{")))
		_, err := zero.Open(files, file)
		require.ErrorContains(t, err, file)
	})
}

// broken is Files that cannot be written while err is set.
type broken struct {
	disk.Files
	err error
}

func (b *broken) Replace(name string, data []byte) error {
	if b.err != nil {
		return b.err
	}
	return b.Files.Replace(name, data)
}

func TestRaise_LastsUntilTheNextGeneration(t *testing.T) {
	t.Parallel()
	files := disk.NewMemory()
	z := open(t, files)
	require.Zero(t, z.Raise(dep, zero.Raise{Epoch: 1, Generation: 7, Replicas: 4}))
	require.Zero(t, open(t, files).Raised(dep, 1, 7), "the raise was not stored yet")
	require.NoError(t, z.Keep())
	z = open(t, files)
	require.EqualValues(t, 4, z.Raised(dep, 1, 7))
	require.Zero(t, z.Raised(dep, 1, 8))
	require.Zero(t, z.Raised(dep, 2, 7), "the control plane was restored from a backup")
	require.Equal(t, zero.Awake, z.Phase(dep, assignment(2, 1)), "a raise is not a wake")

	require.EqualValues(t, 4, z.Raise(dep, zero.Raise{Epoch: 1, Generation: 7, Replicas: 6}).Replicas)
	z.Answer(dep, 1, 7)
	require.EqualValues(t, 6, z.Raised(dep, 1, 7))
	z.Answer(dep, 1, 8)
	require.NoError(t, z.Keep())
	require.Zero(t, open(t, files).Raised(dep, 1, 7))

	z.Raise(dep, zero.Raise{Epoch: 1, Generation: 8, Replicas: 3})
	z.Forget(func(string) bool { return false }, func(string) bool { return true })
	require.Zero(t, z.Raised(dep, 1, 8))
}
