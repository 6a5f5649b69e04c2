// Command onnxclient reads the text of a picture and judges a sound, with the models of the guide on servers of many models.
package main

import (
	"context"
	"errors"
	"fmt"
	"image"
	_ "image/jpeg" // pictures may be JPEG
	_ "image/png"  // or PNG
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/windlass-run/windlass/apps/onnxserver/internal/client"
	"github.com/windlass-run/windlass/apps/onnxserver/internal/ocr"
	"github.com/windlass-run/windlass/apps/onnxserver/internal/sound"
)

type commands struct {
	Read   readCommand   `cmd:"" help:"Read the text of a picture: find lines, turn those that are upside down, and recognize each."`
	Listen listenCommand `cmd:"" help:"Find speech in a sound."`
	Files  filesCommand  `cmd:"" help:"Serve the files of a folder over HTTP on this machine, as a source of models."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var cli commands
	command := kong.Parse(&cli, kong.Name("onnxclient"), kong.Description("Client of the example models of onnxserver."), kong.BindTo(ctx, (*context.Context)(nil)), kong.BindTo(os.Stdout, (*io.Writer)(nil)))
	command.FatalIfErrorf(command.Run())
}

type readCommand struct {
	Picture     string `arg:"" help:"PNG or JPEG file."`
	Detection   string `required:"" help:"URL of the model that finds lines of text."`
	Orientation string `required:"" help:"URL of the model that says whether a line is upside down."`
	Recognition string `required:"" help:"URL of the model that recognizes a line."`
	Characters  string `required:"" help:"File with the characters of the recognition, one in each line."`
}

// Run reads the picture, and prints a line for each line of text.
func (c readCommand) Run(ctx context.Context, out io.Writer) error {
	file, err := os.Open(c.Picture)
	if err != nil {
		return err
	}
	picture, _, err := image.Decode(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("cannot read the picture %s: %w", c.Picture, err)
	}
	list, err := os.ReadFile(c.Characters)
	if err != nil {
		return err
	}
	reader := client.Reader{
		Detection:   client.Model{URL: c.Detection, Name: "ocr-detection"},
		Orientation: client.Model{URL: c.Orientation, Name: "ocr-orientation"},
		Recognition: client.Model{URL: c.Recognition, Name: "ocr-recognition"},
		Characters:  ocr.Characters(string(list)),
	}
	lines, err := reader.Read(ctx, picture)
	for _, line := range lines {
		note := ""
		if line.UpsideDown {
			note = ", upside down"
		}
		_, _ = fmt.Fprintf(out, "%s (%.0f%%%s)\n", line.Text, 100*line.Sure, note)
	}
	return err
}

type listenCommand struct {
	Sound     string  `arg:"" help:"WAV file with one channel of 16 bits, and 16000 samples a second."`
	URL       string  `required:"" name:"url" help:"URL of the model."`
	Threshold float32 `default:"0.5" help:"Probability from which a part of the sound is speech."`
}

// Run judges the sound, and prints its parts with speech.
func (c listenCommand) Run(ctx context.Context, out io.Writer) error {
	file, err := os.ReadFile(c.Sound)
	if err != nil {
		return err
	}
	samples, err := sound.Parse(file)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Sound, err)
	}
	probabilities, versions, err := client.Model{URL: c.URL, Name: "speech"}.Listen(ctx, samples)
	if err != nil {
		return err
	}
	for _, span := range sound.Speech(probabilities, c.Threshold) {
		_, _ = fmt.Fprintf(out, "speech from %.1f s to %.1f s\n", span.From, span.To)
	}
	for _, version := range slices.Sorted(maps.Keys(versions)) {
		_, _ = fmt.Fprintf(out, "%d windows judged by version %s\n", versions[version], version)
	}
	return nil
}

type filesCommand struct {
	Folder string `arg:"" help:"Folder with the files."`
	Port   int    `default:"8095" help:"Port on the loopback address."`
}

// Run serves until ctx ends.
func (c filesCommand) Run(ctx context.Context, out io.Writer) error {
	if _, err := os.Stat(c.Folder); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port)))
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "serving %s at http://%s\n", c.Folder, listener.Addr())
	server := &http.Server{Handler: http.FileServer(http.Dir(c.Folder)), ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 10 * time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}
