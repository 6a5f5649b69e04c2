package mariadb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
)

// mariadb-install-db waits for the disk about a thousand times, and no option changes
// that. So it runs once for each user and version of MariaDB, and every new data directory
// is a copy of its result:
//
//	<user's cache>/windlass/mariadb/<version>-<user>/
//	    data/         always complete; servers do not run on it
//	    lock          held by the process that creates data/
//	    install.log   the output of mariadb-install-db

// installDBDeadline limits mariadb-install-db, including the wait for another process that runs it.
const installDBDeadline = 5 * time.Minute

// newData creates dir/data in one step, so that it is always complete.
func newData(ctx context.Context, paths Paths, dir string, d Durability) error {
	made, err := templateDir(ctx, paths)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "data.tmp")
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.CopyFS(tmp, os.DirFS(made)); err != nil {
		return err
	}
	if d == Durable {
		if err := syncTree(tmp); err != nil {
			return err
		}
	}
	return os.Rename(tmp, filepath.Join(dir, "data"))
}

// templateDir returns the data directory to copy. It creates the directory if it does not exist.
func templateDir(ctx context.Context, paths Paths) (string, error) {
	me, err := user.Current()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for the template of data directories: %w", err)
	}
	name := strings.ReplaceAll(paths.Version+"-"+me.Username, string(filepath.Separator), "_")
	dir := filepath.Join(cache, "windlass", "mariadb", name)
	data := filepath.Join(dir, "data")
	if fileExists(data) {
		return data, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, installDBDeadline, fmt.Errorf("gave up after %s", installDBDeadline))
	defer cancel()
	lock, err := flock.Acquire(ctx, filepath.Join(dir, "lock"), nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Unlock() }()
	if fileExists(data) {
		return data, nil
	}
	tmp := data + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	if err := installDB(ctx, paths, me, dir, tmp); err != nil {
		return "", err
	}
	// After a power failure, every file of the template must be complete, because it is copied.
	if err := syncTree(tmp); err != nil {
		return "", err
	}
	return data, os.Rename(tmp, data)
}

func installDB(ctx context.Context, paths Paths, me *user.User, dir, data string) error {
	args := []string{
		"--no-defaults",
		"--basedir=" + paths.BaseDir,
		"--datadir=" + data,
		"--tmpdir=" + dir,
		"--auth-root-authentication-method=socket",
		"--auth-root-socket-user=" + me.Username,
		"--skip-test-db",
		"--skip-name-resolve",
		// The file is small, because it is copied. A server makes it larger at its start.
		"--innodb-log-file-size=" + Relaxed.logFileSize(),
		"--innodb-flush-method=nosync",
	}
	if os.Geteuid() == 0 {
		args = append(args, "--user=root")
	}
	cmd := exec.CommandContext(ctx, paths.InstallDB, args...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	log := filepath.Join(dir, "install.log")
	logErr := atomicfile.Write(log, out, 0o600)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("mariadb-install-db: %w (log: %s)", err, log)
	}
	return logErr
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// syncTree syncs every file and folder below root to the disk.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() && !entry.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}
