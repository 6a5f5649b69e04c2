package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/ident"
)

// Each stable slot has a directory, which outlives its instances:
//
//	slots/WORKLOAD/ROLE.GROUP.SLOT   of one slot. A version that takes the workload over finds it there
//	slots/.gone-ID                   a directory that is being deleted
//
// A directory is deleted once its slot is not wanted and no instance has the slot. A deployment without replicas keeps
// its directories, because it only sleeps.

const (
	slotsDir = "slots"
	// gonePrefix begins the names of directories that are being deleted. No workload key begins with a dot.
	gonePrefix = ".gone-"
	// slotDirEnv is the variable with the directory of an instance's slot.
	slotDirEnv = "WINDLASS_SLOT_DIR"
)

func (r *Runtime) slotsOf(workload string) string {
	return filepath.Join(r.cfg.DataDir, slotsDir, workload)
}

func (k slotKey) dirName() string { return fmt.Sprintf("%s.%d.%d", k.Role, k.Group, k.Slot) }

func (r record) slotKey() slotKey { return slotKey{r.Role, r.Group, r.Slot} }

// slotDirs returns the names of the directories that the workload should have.
func (w wanted) slotDirs() map[string]bool {
	out := map[string]bool{}
	if w.Gone {
		return out
	}
	for _, r := range w.Roles {
		if !r.Stable {
			continue
		}
		for group := range w.Replicas {
			for slot := range r.Instances {
				out[slotKey{r.Name, group, slot}.dirName()] = true
			}
		}
	}
	return out
}

// findSlots reads which slots of the workload have directories. The caller holds mu.
func (w *workload) findSlots() error {
	if w.slots != nil {
		return nil
	}
	entries, err := os.ReadDir(w.rt.slotsOf(w.key))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the directories of slots: %w", err)
	}
	w.slots = map[string]bool{}
	for _, e := range entries {
		w.slots[e.Name()] = true
	}
	return nil
}

// clearSlots deletes the directories of slots that are not wanted. The caller holds mu.
func (w *workload) clearSlots(want wanted) error {
	if want.Paused || !want.Gone && want.Replicas == 0 {
		return nil
	}
	if err := w.findSlots(); err != nil {
		return err
	}
	keep := want.slotDirs()
	for _, in := range w.instances {
		keep[in.rec.slotKey().dirName()] = true
	}
	for name := range w.slots {
		if keep[name] {
			continue
		}
		if err := w.rt.discardDir(filepath.Join(w.rt.slotsOf(w.key), name)); err != nil {
			return err
		}
		w.rt.log.Info("deleting the directory of a slot that is gone", "workload", w.key, "slot", name)
		delete(w.slots, name)
	}
	if len(w.slots) > 0 || len(keep) > 0 {
		return nil // an instance of another role may end last, so the directory of all slots is looked at in each pass after that
	}
	if err := removeSlotsDir(w.rt.slotsOf(w.key)); err != nil {
		w.slots = nil // so that the next pass tries again
		return err
	}
	return nil
}

func removeSlotsDir(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete the directory of slots: %w", err)
	}
	return nil
}

// discardDir makes a directory disappear at once, and deletes it in a goroutine, because it may be large.
func (r *Runtime) discardDir(dir string) error {
	gone := filepath.Join(r.cfg.DataDir, slotsDir, gonePrefix+ident.New("slt"))
	if err := os.Rename(dir, gone); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("delete the directory of a slot: %w", err)
	}
	r.wg.Go(func() { r.deleteGone(r.ctx, gone) })
	return nil
}

// deleteGone deletes directories, and tries again until all are deleted or ctx ends. What is left then is deleted by the
// next agent.
func (r *Runtime) deleteGone(ctx context.Context, dirs ...string) {
	for {
		dirs = slices.DeleteFunc(dirs, func(dir string) bool {
			err := disk.RemoveAll(ctx, dir)
			if err != nil && ctx.Err() == nil {
				r.log.Error("deleting the directory of a slot failed; will try again", "dir", dir, "err", err, "retry_in", slotRetry)
			}
			return err == nil
		})
		if len(dirs) == 0 || backoff.Sleep(ctx, slotRetry) != nil {
			return
		}
	}
}

// deleteAllGone deletes the discarded directories that an earlier agent had no time to delete.
func (r *Runtime) deleteAllGone(ctx context.Context) {
	entries, err := os.ReadDir(filepath.Join(r.cfg.DataDir, slotsDir))
	if err != nil {
		return // no slot ever had a directory
	}
	var dirs []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), gonePrefix) {
			dirs = append(dirs, filepath.Join(r.cfg.DataDir, slotsDir, e.Name()))
		}
	}
	r.deleteGone(ctx, dirs...)
}

// makeSlot makes the directory of an instance's slot.
func (l launch) makeSlot() error {
	if l.Slot == "" {
		return nil
	}
	if err := os.MkdirAll(l.Slot, 0o700); err != nil {
		return fmt.Errorf("make the directory of the slot: %w", err)
	}
	return nil
}
