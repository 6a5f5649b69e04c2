package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// compile builds a program for linux and arch into dir, and returns its path. The file does not
// depend on this machine. It contains no folder names (-trimpath), no C library (no cgo), and no
// state of the checkout (-buildvcs=false, because labels of the image have the commit).
func compile(ctx context.Context, s Source, p Program, arch, dir string) (string, error) {
	path := filepath.Join(dir, p.Name+"-linux-"+arch)
	flags := "-s -w"
	if p.Versioned {
		flags += " -X " + module + "/apps/" + p.Name + ".Version=" + s.Version
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", path,
		"./apps/"+p.Name+"/cmd/"+p.Name)
	cmd.Dir = s.Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOWORK="+filepath.Join(s.Root, "go.work"),
		// With other settings of the caller, the file would be different.
		"GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build %s for linux/%s: %w", p.Name, arch, err)
	}
	return path, nil
}
