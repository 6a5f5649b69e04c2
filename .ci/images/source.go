package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	repository = "https://github.com/windlass-run/windlass"
	module     = "github.com/windlass-run/windlass"
	license    = "Apache-2.0"
)

// Source is the source of images. Labels and times of an image depend only on it, so that two
// builds of one commit are the same bytes.
type Source struct {
	// Root is the folder with go.work.
	Root string
	// Version is the tag of images, and the version that programs print.
	Version string
	// Revision is the commit, or empty outside of a git checkout.
	Revision string
	// Dirty is true if files differ from the commit.
	Dirty bool
	// Time is the commit's time. With the current time, each build would make a different image.
	Time time.Time
}

// findRoot returns the folder with go.work, at or above dir.
func findRoot(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.work here or above: run this inside of the repository")
		}
		dir = up
	}
}

// readSource reads the source at root, with git. If version is not empty, it replaces git's version.
// SOURCE_DATE_EPOCH replaces the commit's time, as in other reproducible builds.
func readSource(ctx context.Context, root, version, epoch string) (Source, error) {
	s := Source{Root: root, Version: version, Time: time.Unix(0, 0).UTC()}
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	if revision, err := git("rev-parse", "HEAD"); err == nil {
		s.Revision = revision
		changes, err := git("status", "--porcelain", "--untracked-files=no")
		if err != nil {
			return Source{}, fmt.Errorf("git status: %w", err)
		}
		s.Dirty = changes != ""
		seconds, err := git("log", "-1", "--format=%ct")
		if err != nil {
			return Source{}, fmt.Errorf("git log: %w", err)
		}
		if epoch == "" {
			epoch = seconds
		}
		if s.Version == "" {
			if s.Version, err = git("describe", "--tags", "--always", "--dirty"); err != nil {
				return Source{}, fmt.Errorf("git describe: %w", err)
			}
		}
	}
	if s.Version == "" {
		return Source{}, errors.New("--version is needed, because this is not a git checkout")
	}
	if epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return Source{}, fmt.Errorf("SOURCE_DATE_EPOCH %q: give seconds since 1970", epoch)
		}
		s.Time = time.Unix(seconds, 0).UTC()
	}
	return s, nil
}
