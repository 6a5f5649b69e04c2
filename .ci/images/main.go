// Command images builds the OCI images of Windlass without a container daemon. An image has a
// static program, a user and the CAs. The command writes OCI layouts and SBOMs, and pushes them to a
// registry on request. Two builds of one commit with the same releases of Go and Node.js have the
// same digests. The control plane embeds the dashboard that .ci/dashboard built.
//
// The command is in a separate module, so that no program depends on its dependencies.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Flags are the flags of the command line.
type Flags struct {
	Push     string   `help:"REGISTRY/PREFIX to push images and SBOMs to, as PREFIX/NAME:VERSION. The credentials are those of docker login. Default: nothing is pushed." placeholder:"REGISTRY/PREFIX"`
	Insecure bool     `help:"Push by HTTP, without TLS. Registries on the loopback address do not need this flag."`
	Only     []string `help:"Names of images. Default: all." placeholder:"NAME"`
	Arch     []string `help:"Architectures: amd64, arm64. Default: both." placeholder:"ARCH"`
	Version  string   `help:"Tag of images, and version that programs print. Default: the output of git describe."`
	Out      string   `help:"Folder for OCI layouts, SBOMs and images.json." default:"bin/images"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], ".", os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// run builds the images of the repository around dir.
func run(ctx context.Context, args []string, dir string, out io.Writer) error {
	var f Flags
	parser, err := kong.New(&f, kong.Name("images"), kong.Description("Builds OCI images without a container daemon."),
		kong.Writers(out, out))
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return err
	}
	chosen, err := choose("--only", programs, func(p Program) string { return p.Name }, f.Only)
	if err != nil {
		return err
	}
	arches, err := choose("--arch", architectures, func(a string) string { return a }, f.Arch)
	if err != nil {
		return err
	}
	root, err := findRoot(dir)
	if err != nil {
		return err
	}
	source, err := readSource(ctx, root, f.Version, os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	if f.Push != "" && source.Dirty {
		return errors.New("--push refused: files differ from the commit that labels of the images would name. Commit or stash the changes")
	}
	if !filepath.IsAbs(f.Out) {
		f.Out = filepath.Join(root, f.Out)
	}
	if err := os.MkdirAll(f.Out, 0o755); err != nil {
		return err
	}
	var results []Result
	for _, p := range chosen {
		r, err := makeImage(ctx, f, source, p, arches)
		if err != nil {
			return err
		}
		results = append(results, r)
		if _, err := io.WriteString(out, summary(r)); err != nil {
			return err
		}
	}
	if err := writeResults(f.Out, results); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "layouts, SBOMs and images.json: %s\n", f.Out)
	return err
}

// makeImage builds, writes and pushes the image of one program.
func makeImage(ctx context.Context, f Flags, s Source, p Program, arches []string) (_ Result, err error) {
	work, err := os.MkdirTemp("", "windlass-images-")
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errorOr(err, os.RemoveAll(work)) }()
	idx, images, err := build(ctx, s, p, arches, work)
	if err != nil {
		return Result{}, err
	}
	r, err := describe(s, p, idx, images)
	if err != nil {
		return Result{}, err
	}
	if err := writeLayout(f.Out, s, p, idx, images); err != nil {
		return Result{}, fmt.Errorf("write %s into %s: %w", p.Name, f.Out, err)
	}
	if f.Push != "" {
		if r.Reference, err = push(ctx, f.Push, f.Insecure, s, p, idx, images); err != nil {
			return Result{}, err
		}
	}
	return r, nil
}

// build compiles a program into work, and makes its image for each architecture.
func build(ctx context.Context, s Source, p Program, arches []string, work string) (v1.ImageIndex, []Built, error) {
	var images []Built
	for _, arch := range arches {
		path, err := compile(ctx, s, p, arch, work)
		if err != nil {
			return nil, nil, err
		}
		b, err := assemble(s, p, arch, path)
		if err != nil {
			return nil, nil, err
		}
		images = append(images, b)
	}
	idx, err := index(s, p, images)
	return idx, images, err
}

// summary returns the printed text about an image.
func summary(r Result) string {
	where := r.Name + ":" + r.Version
	if r.Reference != "" {
		where = r.Reference
	}
	var text strings.Builder
	text.WriteString(where + "@" + r.Digest + "\n")
	for _, p := range r.Platforms {
		fmt.Fprintf(&text, "  %-12s %5.1f MiB  %s\n", p.Platform, float64(p.Bytes)/(1<<20), p.Digest)
	}
	return text.String()
}
