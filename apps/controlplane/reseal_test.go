package controlplane

import (
	"bytes"
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/fleet"
	"github.com/windlass-run/windlass/apps/controlplane/internal/keyset"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
	"github.com/windlass-run/windlass/pkg/seal"
)

// vault is a store with secrets, and the keyset's file.
type vault struct {
	t     *testing.T
	store store.Store
	path  string
	now   int64
}

func newVault(t *testing.T, s store.Store) *vault {
	v := &vault{t: t, store: s, path: filepath.Join(t.TempDir(), "keyset.json")}
	require.NoError(t, seal.Create(v.path))
	return v
}

func (v *vault) box() *seal.Box {
	v.t.Helper()
	box, err := seal.Load(v.path)
	require.NoError(v.t, err)
	return box
}

// environmentOf puts names that begin with n into an environment of their own, because after a deletion, new secrets
// of an environment do not start at version 1.
func environmentOf(name string) string {
	if strings.HasPrefix(name, "n") {
		return "env_2"
	}
	return "env_1"
}

// put stores n versions of a secret, which the box sealed.
func (v *vault) put(box *seal.Box, name string, n int32) {
	v.t.Helper()
	require.NoError(v.t, v.set(box, name, n))
}

func (v *vault) set(box *seal.Box, name string, n int32) error {
	return v.store.Update(context.Background(), func(tx store.Tx) error {
		for version := int32(1); version <= n; version++ {
			data, err := box.Seal(fmt.Appendf(nil, "%s-%d", name, version), model.SecretContext(environmentOf(name), name, version))
			if err != nil {
				return err
			}
			err = tx.InsertSecretVersion(model.Secret{WorkspaceID: "ws_1", EnvironmentID: environmentOf(name), Name: name, Version: version, Ciphertext: data, CreatedAt: 1, UpdatedAt: 1})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// rotate makes a new key primary, and returns the old one.
func (v *vault) rotate() (old, primary uint32) {
	v.t.Helper()
	old = v.box().Primary()
	_, err := seal.Add(v.path)
	require.NoError(v.t, err)
	primary, err = seal.Rotate(v.path)
	require.NoError(v.t, err)
	return old, primary
}

// process inserts the rows of a control plane that runs with the box.
func (v *vault) process(id string, box *seal.Box) {
	v.t.Helper()
	require.NoError(v.t, v.store.Update(v.t.Context(), func(tx store.Tx) error {
		var keys []model.PeerKey
		for _, key := range box.Keys() {
			keys = append(keys, model.PeerKey{KeyID: key, Seals: key == box.Primary()})
		}
		if err := tx.PutPeerKeys(id, keys); err != nil {
			return err
		}
		return tx.PutPeer(model.Peer{ID: id, Address: id + ":7702"})
	}))
}

func (v *vault) use() keyUse {
	return keyUse{path: v.path, box: v.box(), store: store.Bind[keyset.Tx](v.store), log: slog.New(slog.DiscardHandler)}
}

func (v *vault) reseal(f resealFlags) (string, error) {
	var out bytes.Buffer
	if f.Batch == 0 {
		f.Batch = 3
	}
	err := v.use().resealValues(v.t.Context(), f, &out)
	return out.String(), err
}

func (v *vault) remove(id uint32, now bool) (string, error) {
	var out bytes.Buffer
	err := v.use().remove(v.t.Context(), removeKeyFlags{ID: id, EndCredentials: now}, &out)
	return out.String(), err
}

func (v *vault) counts() map[uint32]int64 {
	v.t.Helper()
	usage, err := keyset.ReadUsage(v.t.Context(), store.Bind[keyset.Tx](v.store))
	require.NoError(v.t, err)
	return usage.Values
}

// opens requires that the box opens every version of the secret.
func (v *vault) opens(box *seal.Box, name string, n int32) {
	v.t.Helper()
	require.NoError(v.t, v.store.View(v.t.Context(), func(tx store.Tx) error {
		for version := int32(1); version <= n; version++ {
			s, err := tx.GetSecretVersion("ws_1", environmentOf(name), name, version)
			require.NoError(v.t, err)
			plain, err := box.Open(s.Ciphertext, model.SecretContext(environmentOf(name), name, version))
			require.NoError(v.t, err)
			require.Equal(v.t, fmt.Sprintf("%s-%d", name, version), string(plain))
		}
		return nil
	}))
}

// onStores runs the test with both stores.
func onStores(t *testing.T, test func(t *testing.T, v *vault)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		var v *vault
		v = newVault(t, memory.New(func() int64 { return time.Now().UnixMilli() + v.now }))
		test(t, v)
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		s, err := mysql.Open(t.Context(), mysql.Config{DSN: stacktest.MariaDB(t)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		test(t, newVault(t, s))
	})
}

func TestReseal(t *testing.T) {
	t.Parallel()
	t.Run("the primary key seals all values and the old key can be removed", func(t *testing.T) {
		t.Parallel()
		onStores(t, func(t *testing.T, v *vault) {
			first := v.box()
			v.put(first, "token", 5)
			v.put(first, "registry", 2)
			old, primary := v.rotate()
			v.put(v.box(), "new", 1)

			out, err := v.reseal(resealFlags{DryRun: true})
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("would reseal 7 values with key %d\n", primary), out)
			require.Equal(t, map[uint32]int64{old: 7, primary: 1}, v.counts())
			_, err = v.remove(old, true)
			require.ErrorContains(t, err, fmt.Sprintf("key %d is in use: 7 stored values are sealed with it: run keyset reseal first", old))

			out, err = v.reseal(resealFlags{})
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("resealed 7 values with key %d\nkey %d is not used any more: remove it with keyset remove %d\n", primary, old, old), out)
			require.Equal(t, map[uint32]int64{primary: 8}, v.counts())
			out, err = v.reseal(resealFlags{})
			require.NoError(t, err)
			require.Contains(t, out, "resealed 0 values")

			_, err = v.remove(primary, true)
			require.Error(t, err)
			out, err = v.remove(old, false)
			require.NoError(t, err)
			require.Contains(t, out, fmt.Sprintf("removed key %d", old))
			box := v.box()
			require.Equal(t, []uint32{primary}, box.Keys())
			v.opens(box, "token", 5)
			v.opens(box, "registry", 2)
			v.opens(box, "new", 1)
		})
	})

	t.Run("the next run finishes a run that was stopped between two batches", func(t *testing.T) {
		t.Parallel()
		onStores(t, func(t *testing.T, v *vault) {
			v.put(v.box(), "token", 7)
			old, primary := v.rotate()
			for stops := 0; ; stops++ {
				ctx, cancel := context.WithCancel(t.Context())
				_, err := keyset.Reseal(ctx, keyset.Config{
					Store: store.Bind[keyset.Tx](v.store), Box: v.box(), Batch: 2, Progress: func(keyset.Result) { cancel() },
				})
				cancel()
				if v.counts()[old] == 0 {
					require.Equal(t, 3, stops)
					break
				}
				require.ErrorIs(t, err, context.Canceled)
				v.opens(v.box(), "token", 7)
			}
			require.Equal(t, map[uint32]int64{primary: 7}, v.counts())
		})
	})

	t.Run("reseal writes nothing while a control plane does not have the primary key", func(t *testing.T) {
		t.Parallel()
		onStores(t, func(t *testing.T, v *vault) {
			first := v.box()
			v.put(first, "token", 1)
			v.process("cp_1", first)
			old, primary := v.rotate()
			_, err := v.reseal(resealFlags{})
			require.ErrorContains(t, err, fmt.Sprintf("the control plane cp_1 at cp_1:7702 does not have key %d: restart it with this keyset first", primary))
			require.Equal(t, map[uint32]int64{old: 1}, v.counts())
			require.NoError(t, v.store.Update(t.Context(), func(tx store.Tx) error { return tx.PutPeer(model.Peer{ID: "cp_0", Address: "cp_0:7702"}) }))
			_, err = v.reseal(resealFlags{})
			require.ErrorContains(t, err, "cp_0 at cp_0:7702 is of a release that does not say which keys it has: upgrade it first")
		})
	})

	t.Run("the error names a value that no key opens and other values are resealed", func(t *testing.T) {
		t.Parallel()
		onStores(t, func(t *testing.T, v *vault) {
			v.put(v.box(), "token", 2)
			other := newVault(t, v.store)
			v.put(other.box(), "lost", 1)
			_, primary := v.rotate()
			out, err := v.reseal(resealFlags{})
			require.ErrorContains(t, err, fmt.Sprintf("1 values cannot be opened with this keyset: lost version 1 of environment env_1 (key %d)", other.box().Primary()))
			require.Contains(t, out, "resealed 2 values")
			require.Equal(t, int64(2), v.counts()[primary])
			var shown bytes.Buffer
			require.NoError(t, v.use().showKeys(t.Context(), &shown))
			require.Regexp(t, fmt.Sprintf(`%d +missing +its values cannot be opened with this file +1 +-\n`, other.box().Primary()), shown.String())
			require.Regexp(t, fmt.Sprintf(`%d +enabled +seals and opens +2 +-\n`, primary), shown.String())
		})
	})

	t.Run("secrets that are set or deleted meanwhile are handled correctly", func(t *testing.T) {
		t.Parallel()
		onStores(t, func(t *testing.T, v *vault) {
			box := v.box()
			_, err := seal.Add(v.path)
			require.NoError(t, err)
			both := v.box() // replicas seal with the old key, and also have the new key
			for i := range 20 {
				v.put(box, fmt.Sprintf("s%d", i), 3)
			}
			_, err = seal.Rotate(v.path)
			require.NoError(t, err)
			var writers sync.WaitGroup
			var failed error
			writers.Go(func() {
				for i := range 20 {
					if i%2 == 0 {
						failed = errors.Join(failed, v.store.Update(context.Background(), func(tx store.Tx) error {
							return tx.DeleteSecret("ws_1", "env_1", fmt.Sprintf("s%d", i))
						}))
					}
					failed = errors.Join(failed, v.set(both, fmt.Sprintf("n%d", i), 2))
				}
			})
			for range 3 {
				writers.Go(func() { _, _ = v.reseal(resealFlags{}) })
			}
			writers.Wait()
			require.NoError(t, failed)
			_, err = v.reseal(resealFlags{})
			require.NoError(t, err)
			now := v.box()
			require.Equal(t, map[uint32]int64{now.Primary(): 30 + 40}, v.counts())
			for i := range 20 {
				v.opens(now, fmt.Sprintf("n%d", i), 2)
				if i%2 == 1 {
					v.opens(now, fmt.Sprintf("s%d", i), 3)
				}
			}
		})
	})
}

func TestKeyset_KeyInUseIsNotRemoved(t *testing.T) {
	t.Parallel()
	var v *vault
	v = newVault(t, memory.New(func() int64 { return time.Now().UnixMilli() + v.now }))
	first := v.box()
	v.process("cp_1", first)
	old, _ := v.rotate()
	_, err := v.remove(old, true)
	require.ErrorContains(t, err, "1 control plane processes seal with it (cp_1:7702): restart them")
	// The process restarted with another id. The keys of its earlier id are still remembered.
	require.NoError(t, v.store.Update(t.Context(), func(tx store.Tx) error { return tx.DeletePeer("cp_1") }))
	v.process("cp_2", v.box())
	_, err = v.remove(old, true)
	require.ErrorContains(t, err, "try again in a minute")
	v.now += (2 * time.Minute).Milliseconds()
	_, err = v.remove(old, false)
	require.ErrorContains(t, err, "credentials of agents that it sealed can be valid for another 23h58m0s: wait, or remove it with --end-credentials")
	copied := filepath.Join(t.TempDir(), "copy")
	data, err := os.ReadFile(v.path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(copied, data, 0o600))
	_, err = v.remove(old, true)
	require.NoError(t, err)
	v.path = copied
	v.now += fleet.CredentialTTL.Milliseconds()
	_, err = v.remove(old, false)
	require.NoError(t, err)
}

const resealChild = "WINDLASS_TEST_RESEAL"

// TestReseal_Killed runs this test as a separate process.
func TestResealChild(t *testing.T) {
	args := os.Getenv(resealChild)
	if args == "" {
		t.Skip("only TestReseal_Killed runs this test")
	}
	require.NoError(t, Main(t.Context(), strings.Split(args, " ")))
}

// After a process is killed, every value can be opened.
func TestReseal_Killed(t *testing.T) {
	t.Parallel()
	dsn := stacktest.MariaDB(t)
	s, err := mysql.Open(t.Context(), mysql.Config{DSN: dsn})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	v := newVault(t, s)
	const names, versions = 40, 5
	for i := range names {
		v.put(v.box(), fmt.Sprintf("s%d", i), versions)
	}
	_, primary := v.rotate()
	kills := 0
	for v.counts()[primary] < names*versions {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestResealChild$")
		cmd.Env = append(os.Environ(), resealChild+"="+strings.Join([]string{"keyset", "reseal", "--batch", "1", "--key-file", v.path, "--mysql-dsn", dsn}, " "))
		require.NoError(t, cmd.Start())
		before := v.counts()[primary]
		require.Eventually(t, func() bool { return v.counts()[primary] > before || kills > 50 }, 30*time.Second, time.Millisecond)
		if kills < 5 {
			require.NoError(t, cmd.Process.Kill())
			kills++
		}
		_ = cmd.Wait()
		for i := range names {
			v.opens(v.box(), fmt.Sprintf("s%d", i), versions)
		}
	}
	require.Positive(t, kills)
	require.Equal(t, map[uint32]int64{primary: names * versions}, v.counts())
}

// lostStore loses its first connections.
type lostStore struct {
	keyset.Store
	losses []error
}

func (s *lostStore) View(ctx context.Context, read func(keyset.Tx) error) error {
	if len(s.losses) == 0 {
		return s.Store.View(ctx, read)
	}
	err := s.losses[0]
	s.losses = s.losses[1:]
	return err
}

func TestKeyset_IsCheckedOnceTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, v *vault) {
		s := &lostStore{store.Bind[keyset.Tx](v.store), []error{
			&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}, sqldriver.ErrBadConn,
		}}
		f := serveFlags{KeyFile: v.path}
		require.NoError(t, f.checkKeyset(t.Context(), s, v.box(), slog.New(slog.DiscardHandler)))
		require.Empty(t, s.losses)
		s.losses = []error{errors.New("access denied")}
		require.ErrorContains(t, f.checkKeyset(t.Context(), s, v.box(), slog.New(slog.DiscardHandler)), "read which keys the database was used with: access denied")
	})
}

func TestKeyset_ControlPlaneDoesNotStartWithAWrongKeyset(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, v *vault) {
		starts := func(path string, replace bool) error {
			box, err := seal.Load(path)
			require.NoError(t, err)
			f := serveFlags{KeyFile: path, ReplaceKeyset: replace}
			return f.checkKeyset(t.Context(), store.Bind[keyset.Tx](v.store), box, slog.New(slog.DiscardHandler))
		}
		wrong := filepath.Join(t.TempDir(), "wrong.json")
		require.NoError(t, seal.Create(wrong))
		require.NoError(t, starts(v.path, false), "the database is new")

		first := v.box()
		v.process("cp_1", first)
		require.NoError(t, starts(v.path, false))
		err := starts(wrong, false)
		require.ErrorContains(t, err, fmt.Sprintf("--key-file=%s is a wrong keyset: the control plane cp_1 at cp_1:7702 seals with key %d, which the file does not have", wrong, first.Primary()))
		require.ErrorContains(t, err, "--replace-keyset")

		// The key is rotated before the other replica has it.
		old, primary := v.rotate()
		require.ErrorContains(t, starts(v.path, false), fmt.Sprintf("the control plane cp_1 at cp_1:7702 does not have key %d, with which this control plane would seal", primary))
		v.process("cp_1", v.box())
		require.NoError(t, starts(v.path, false))

		// All replicas have ended, and values that they sealed are stored.
		v.put(first, "token", 1)
		require.NoError(t, v.store.Update(t.Context(), func(tx store.Tx) error { return tx.DeletePeer("cp_1") }))
		require.NoError(t, starts(v.path, false))
		known := []uint32{old, primary}
		slices.Sort(known)
		require.ErrorContains(t, starts(wrong, false), fmt.Sprintf("the database was used with the keys %d, %d, but the file has none of these", known[0], known[1]))
		require.NoError(t, starts(wrong, true))

		// A replica of an earlier release does not say which keys it has.
		require.NoError(t, v.store.Update(t.Context(), func(tx store.Tx) error { return tx.PutPeer(model.Peer{ID: "cp_0", Address: "cp_0:7702"}) }))
		require.NoError(t, starts(v.path, false))
	})
}
