//go:build cgo

package ort

import (
	"context"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/onnxserver"
	"github.com/windlass-run/windlass/apps/onnxserver/internal/client"
	"github.com/windlass-run/windlass/apps/onnxserver/internal/ocr"
	"github.com/windlass-run/windlass/apps/onnxserver/internal/sound"
	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
)

const (
	root     = "../../../.."
	examples = root + "/deployments/examples/onnx"
)

// folder has the library and the example models. .ci/onnx gets them once on a machine.
var folder = sync.OnceValues(func() (string, error) {
	out, err := exec.CommandContext(context.Background(), filepath.Join(root, ".ci", "onnx")).Output()
	return strings.TrimSpace(string(out)), err
})

// newServer returns a server with ONNX Runtime, and its repository.
func newServer(t *testing.T) (url, repository, models string) {
	t.Helper()
	if runtime.GOOS == "linux" && runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("npm's onnxruntime-node has no library for " + runtime.GOARCH)
	}
	dir, err := folder()
	require.NoError(t, err)
	engine, err := Open(DefaultLibrary(filepath.Join(dir, "program")))
	require.NoError(t, err)
	repository = t.TempDir()
	server, err := onnxserver.New(onnxserver.Config{ModelRepository: repository, Engine: engine})
	require.NoError(t, err)
	front := httptest.NewServer(server.Handler())
	t.Cleanup(front.Close)
	return front.URL, repository, filepath.Join(dir, "models")
}

// place puts a file into the folder of a model, as the agent does.
func place(t *testing.T, repository, model, file string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(repository, model)))
	require.NoError(t, os.MkdirAll(filepath.Join(repository, model), 0o750))
	require.NoError(t, os.Symlink(file, filepath.Join(repository, model, filepath.Base(file))))
}

// change loads or unloads a model, and returns the status and the answer.
func change(t *testing.T, url, model, verb string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v2/repository/models/"+model+"/"+verb, nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(answer)
}

func requireLoad(t *testing.T, url, model string) {
	t.Helper()
	status, answer := change(t, url, model, "load")
	require.Equal(t, 200, status, answer)
}

func TestEngine_ReadsAPicture(t *testing.T) {
	url, repository, models := newServer(t)
	for model, file := range map[string]string{
		"ocr-detection": "ch_PP-OCRv4_det_infer.onnx", "ocr-orientation": "ch_ppocr_mobile_v2.0_cls_infer.onnx", "ocr-recognition": "ch_PP-OCRv4_rec_infer.onnx",
	} {
		place(t, repository, model, filepath.Join(models, file))
		requireLoad(t, url, model)
	}
	characters, err := os.ReadFile(filepath.Join(models, "characters.txt"))
	require.NoError(t, err)
	file, err := os.Open(filepath.Join(examples, "sign.png"))
	require.NoError(t, err)
	defer file.Close()
	picture, err := png.Decode(file)
	require.NoError(t, err)
	named := func(name string) client.Model { return client.Model{URL: url, Name: name} }
	reader := client.Reader{
		Detection: named("ocr-detection"), Orientation: named("ocr-orientation"), Recognition: named("ocr-recognition"),
		Characters: ocr.Characters(string(characters)),
	}
	lines, err := reader.Read(t.Context(), picture)
	require.NoError(t, err)
	for i := range lines {
		require.Greater(t, lines[i].Sure, float32(0.9))
		lines[i].Sure = 0
	}
	require.Equal(t, []client.Line{{Text: "Platform 7"}, {Text: "Train to Lisbon 18:45"}, {Text: "Mind the gap", UpsideDown: true}}, lines)
}

func TestEngine_JudgesASoundWithTwoVersions(t *testing.T) {
	url, repository, models := newServer(t)
	text, err := os.ReadFile(filepath.Join(examples, "sound.wav"))
	require.NoError(t, err)
	samples, err := sound.Parse(text)
	require.NoError(t, err)
	model := client.Model{URL: url, Name: "speech"}
	for _, version := range []string{"5", "6"} {
		place(t, repository, "speech", filepath.Join(models, "silero_vad_v"+version+".onnx"))
		requireLoad(t, url, "speech")
		probabilities, versions, err := model.Listen(t.Context(), samples)
		require.NoError(t, err)
		require.Equal(t, map[string]int{version: len(probabilities)}, versions)
		spans := sound.Speech(probabilities, 0.5)
		require.Len(t, spans, 1)
		require.InDelta(t, 0.7, spans[0].From, 0.2)
		require.InDelta(t, 1.8, spans[0].To, 0.2)
		quiet, _, err := model.Listen(t.Context(), make([]float32, sound.Rate/2))
		require.NoError(t, err)
		require.Empty(t, sound.Speech(quiet, 0.5))
	}
	// Requests at the same time share the session, also while another version is loaded.
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for _, window := range sound.Windows(samples[:sound.Rate]) {
				_, _, err := model.Infer(t.Context(), window, sound.FirstState(), sound.RateInput())
				if err != nil && !strings.Contains(err.Error(), "unknown model") {
					t.Error(err)
				}
			}
		})
	}
	place(t, repository, "speech", filepath.Join(models, "silero_vad_v5.onnx"))
	requireLoad(t, url, "speech")
	calls.Wait()
	status, answer := change(t, url, "speech", "unload")
	require.Equal(t, 200, status, answer)
}

func TestEngine_RefusesFilesAndInputs(t *testing.T) {
	url, repository, models := newServer(t)
	require.NoError(t, os.MkdirAll(filepath.Join(repository, "wrong"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "wrong", "model.onnx"), []byte("not a model"), 0o600))
	status, answer := change(t, url, "wrong", "load")
	require.Equal(t, 400, status)
	require.Contains(t, answer, "ONNX Runtime cannot load its file model.onnx")
	require.NotContains(t, answer, repository)

	// Half of a file.
	whole, err := os.ReadFile(filepath.Join(models, "silero_vad_v5.onnx"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(repository, "wrong", "model.onnx"), whole[:len(whole)/2], 0o600))
	status, answer = change(t, url, "wrong", "load")
	require.Equal(t, 400, status, answer)

	place(t, repository, "speech", filepath.Join(models, "silero_vad_v5.onnx"))
	requireLoad(t, url, "speech")
	// The model declares any number of samples, but its network takes some numbers only.
	_, _, err = client.Model{URL: url, Name: "speech"}.Infer(t.Context(), tensor.FromFloats("input", []int64{1, 3}, make([]float32, 3)), sound.FirstState(), sound.RateInput())
	require.ErrorContains(t, err, "400 Bad Request")
	require.ErrorContains(t, err, "cannot run with these inputs")
	// A scalar may be sent without a dimension.
	rate := sound.RateInput()
	rate.Shape = []int64{}
	_, _, err = client.Model{URL: url, Name: "speech"}.Infer(t.Context(), sound.Windows(make([]float32, sound.Window))[0], sound.FirstState(), rate)
	require.NoError(t, err)
}

func TestSession_EndsWithItsContext(t *testing.T) {
	dir, err := folder()
	require.NoError(t, err)
	engine, err := Open(DefaultLibrary(filepath.Join(dir, "program")))
	require.NoError(t, err)
	session, err := engine.Open(filepath.Join(dir, "models", "ch_PP-OCRv4_det_infer.onnx"), 1)
	require.NoError(t, err)
	defer session.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(context.DeadlineExceeded)
	_, err = session.Run(ctx, []tensor.Tensor{tensor.FromFloats("x", []int64{1, 3, 960, 960}, make([]float32, 3*960*960))})
	require.ErrorIs(t, err, context.DeadlineExceeded)

	_, err = Open(filepath.Join(dir, "another"))
	require.ErrorContains(t, err, "is loaded from")
}
