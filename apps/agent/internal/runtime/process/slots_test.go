package process_test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const slotsWait = 300 * time.Millisecond

// TestSlots_DeletionThatFailsIsTriedByTheNextAgent makes the deletion fail with a mount, which cannot be renamed.
func TestSlots_DeletionThatFailsIsTriedByTheNextAgent(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for a mount")
	}
	h := newHost(t)
	rt := h.open(t)
	a := assignment("dep_1", 1, self(t))
	a.Deployment.Spec.Roles = []*windlassv1.RoleSpec{{Name: "cache", Slots: windlassv1.RoleSpec_SLOTS_STABLE}}
	require.NoError(t, rt.Apply(t.Context(), a))
	until(t, rt, "dep_1", allReady(1))
	dir := filepath.Join(h.cfg.DataDir, "slots", "dep_1", "cache.0.0")
	require.DirExists(t, dir)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("cannot mount a file system: ", err)
	}
	unmount := func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }
	t.Cleanup(unmount)
	require.NoError(t, rt.Remove(t.Context(), "dep_1"))
	until(t, rt, "dep_1", func(all []runtime.Instance) bool { return len(all) == 0 })
	rt = h.open(t)
	require.Never(t, func() bool {
		seen, err := rt.Observe(t.Context())
		return err == nil && len(seen.Deployments) == 0
	}, slotsWait, slotsWait/10, "the deployment is not forgotten while the directory of its slot is there")
	unmount()
	rt = h.open(t)
	require.Eventually(t, func() bool {
		seen, err := rt.Observe(t.Context())
		return err == nil && len(seen.Deployments) == 0 && len(h.leftovers(t)) == 0
	}, patience, slotsWait/10)
}

// TestSlots_NothingIsLeftIfAnotherRoleEndsLast has a role without slots that ends after the role with slots.
func TestSlots_NothingIsLeftIfAnotherRoleEndsLast(t *testing.T) {
	h := newHost(t)
	rt := h.open(t)
	a := assignment("dep_1", 1, self(t))
	a.Deployment.Spec.Roles = []*windlassv1.RoleSpec{
		{Name: "web", Command: []string{"/bin/sh", "-c", `trap 'sleep 1; exit 0' TERM; while :; do sleep 0.05; done`}},
		{Name: "cache", Slots: windlassv1.RoleSpec_SLOTS_STABLE},
	}
	require.NoError(t, rt.Apply(t.Context(), a))
	// The instance of web never listens, so it is running and not ready.
	until(t, rt, "dep_1", func(all []runtime.Instance) bool {
		return len(all) == 2 && !slices.ContainsFunc(all, func(i runtime.Instance) bool {
			return i.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_READY && i.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
		})
	})
	require.DirExists(t, filepath.Join(h.cfg.DataDir, "slots", "dep_1", "cache.0.0"))
	require.NoError(t, rt.Remove(t.Context(), "dep_1"))
	require.Eventually(t, func() bool {
		seen, err := rt.Observe(t.Context())
		return err == nil && len(seen.Deployments) == 0 && len(h.leftovers(t)) == 0
	}, patience, slotsWait/10)
}
