package onnxserver

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	inferencepb "github.com/windlass-run/windlass/proto/gen/inference"
	"github.com/windlass-run/windlass/proto/gen/inference/inferenceconnect"
)

func TestServer_LoadsAnswersAndUnloads(t *testing.T) {
	h := newHarness(t, nil)
	h.write(t, "echo/model.onnx", "content")
	h.requireCall(t, "GET", "/v2", "", 200, `"model_repository"`)
	for _, path := range []string{"/health", "/v2/health/live", "/v2/health/ready"} {
		h.requireCall(t, "GET", path, "", 200, "")
	}
	require.Equal(t, map[string]string{"echo": "UNAVAILABLE"}, h.states(t))
	h.requireCall(t, "POST", "/v2/models/echo/infer", pair, 404, "unknown model: 'echo'")
	h.requireCall(t, "GET", "/v2/models/echo/ready", "", 404, "unknown model")

	h.load(t, "echo")
	h.load(t, "echo") // a second load changes nothing
	require.Equal(t, map[string]string{"echo": "READY 1"}, h.states(t))
	h.requireCall(t, "GET", "/v2/models/echo/ready", "", 200, "")
	h.requireCall(t, "GET", "/v2/models/echo", "", 200, `"platform":"onnx_onnxv1"`)
	h.requireCall(t, "GET", "/v2/models/echo/versions/2", "", 404, "version 2")
	h.requireCall(t, "POST", "/v2/models/echo/infer", pair, 200,
		`{"model_name":"echo","model_version":"1","id":"7","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[1,2.5]},{"name":"text","datatype":"BYTES","shape":[1],"data":["content"]}]}`)
	h.requireCall(t, "POST", "/v2/models/echo/versions/1/infer", strings.Replace(pair, `"id"`, `"outputs": [{"name": "text"}], "id"`, 1), 200, `"outputs":[{"name":"text"`)

	h.requireCall(t, "POST", "/v2/repository/models/echo/unload", "", 200, "")
	h.requireCall(t, "POST", "/v2/repository/models/echo/unload", "", 404, "not loaded")
	h.requireCall(t, "GET", "/metrics", "", 200, `onnxserver_requests_total{model="echo",protocol="http",status="200"} 2`)
	h.requireCall(t, "GET", "/metrics", "", 200, `onnxserver_requests_total{model="",protocol="http",status="404"} 1`)
	h.requireCall(t, "GET", "/metrics", "", 200, "onnxserver_model_memory_bytes 0")
}

func TestServer_RefusesInputsThatTheModelDoesNotTake(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxBodyBytes = 2000 })
	h.write(t, "echo/model.onnx", "content")
	h.write(t, "failing/model.onnx", "failing")
	h.load(t, "echo")
	h.load(t, "failing")
	input := func(fields string) string { return `{"inputs": [{"name": "x", ` + fields + `}]}` }
	for name, c := range map[string]struct {
		body, answer string
		status       int
	}{
		"no JSON":        {`{`, "not a request for inference", 400},
		"no input":       {`{"inputs": []}`, "has 1 inputs ('x'), and the request has 0", 400},
		"other input":    {strings.Replace(pair, `"x"`, `"z"`, 1), "input 'x' is missing", 400},
		"datatype":       {input(`"shape": [1, 2], "datatype": "INT32", "data": [1, 2]`), "datatype must be FP32, not INT32", 400},
		"half precision": {input(`"shape": [1, 2], "datatype": "FP16", "data": [1, 2]`), `datatype \"FP16\" is not supported`, 400},
		"shape":          {input(`"shape": [2], "datatype": "FP32", "data": [1, 2]`), "shape must be [-1 2], not [2]", 400},
		"huge shape":     {input(`"shape": [4294967296, 2], "datatype": "FP32", "data": [1]`), "negative or too large", 400},
		"short data":     {input(`"shape": [1, 2], "datatype": "FP32", "data": [1]`), "has 8", 400},
		"text":           {input(`"shape": [1, 2], "datatype": "FP32", "data": ["a", "b"]`), "not of type FP32", 400},
		"null":           {input(`"shape": [1, 2], "datatype": "FP32", "data": [null, 1]`), "not of type FP32", 400},
		"no data":        {input(`"shape": [1, 2], "datatype": "FP32"`), "data is missing", 400},
		"object":         {input(`"shape": [1, 2], "datatype": "FP32", "data": {"a": 1}`), "must be a list", 400},
		"other output":   {strings.Replace(pair, `"id"`, `"outputs": [{"name": "z"}], "id"`, 1), "unexpected inference output 'z'", 400},
		"output twice":   {strings.Replace(pair, `"id"`, `"outputs": [{"name": "y"}, {"name": "y"}], "id"`, 1), "inference output 'y' is requested twice", 400},
		"large body":     {pair + strings.Repeat(" ", 2000), "more than 2000 bytes", 413},
	} {
		t.Run(name, func(t *testing.T) { h.requireCall(t, "POST", "/v2/models/echo/infer", c.body, c.status, c.answer) })
	}
	h.requireCall(t, "POST", "/v2/models/failing/infer", pair, 400, "cannot run with these inputs: Got invalid dimensions")
}

func TestServer_TakesAndSendsBinaryData(t *testing.T) {
	h := newHarness(t, nil)
	h.write(t, "echo/model.onnx", "content")
	h.load(t, "echo")
	head := `{"parameters": {"binary_data_output": true}, "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}]}`
	data := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.NaN())))
	data = binary.LittleEndian.AppendUint32(data, math.Float32bits(2))
	send := func(length, body string) (*http.Response, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v2/models/echo/infer", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set(binaryHeader, length)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res, string(answer)
	}
	res, answer := send(strconv.Itoa(len(head)), head+string(data))
	require.Equal(t, 200, res.StatusCode, answer)
	n, err := strconv.Atoi(res.Header.Get(binaryHeader))
	require.NoError(t, err)
	require.JSONEq(t, `{"model_name": "echo", "model_version": "1", "outputs": [
		{"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
		{"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 11}}]}`, answer[:n])
	require.Equal(t, string(data)+"\x07\x00\x00\x00content", answer[n:])

	for _, c := range []struct{ length, body, answer string }{
		{"-1", head, "must be at most the length of the body"},
		{"1000", head, "must be at most the length of the body"},
		{strconv.Itoa(len(head)), head + "1234", "binary_data_size is 8, and 4 bytes are left"},
		{strconv.Itoa(len(head)), head + string(data) + "1", "1 bytes more than its inputs"},
	} {
		res, answer := send(c.length, c.body)
		require.Equal(t, 400, res.StatusCode)
		require.Contains(t, answer, c.answer)
	}
	head = strings.Replace(head, "true", "false", 1)
	res, answer = send(strconv.Itoa(len(head)), head+string(data))
	require.Equal(t, 400, res.StatusCode)
	require.Contains(t, answer, "JSON cannot express the value NaN")
}

func TestServer_SaysWhyALoadFails(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.ModelMemoryMiB = 100 })
	h.write(t, "wrong/model.onnx", "broken")
	h.write(t, "none/readme.txt", "")
	h.write(t, "two/a.onnx", "")
	h.write(t, "two/b.onnx", "")
	h.write(t, "empty-version/3/readme.txt", "")
	h.write(t, "settings/model.onnx", "")
	h.write(t, "settings/model.json", `{"memory": 3}`)
	h.write(t, "small/model.onnx", strings.Repeat("a", 2<<20))
	h.write(t, "small/model.json", `{"memoryMib": 1}`)
	h.write(t, "large/model.onnx", "")
	h.write(t, "large/model.json", `{"memoryMib": 101}`)
	h.write(t, "range/model.onnx", "")
	h.write(t, "range/model.json", `{"memoryMib": 0}`)
	for model, answer := range map[string]string{
		"wrong":         "failed to load 'wrong': ONNX Runtime cannot load its file model.onnx: Load model from model.onnx failed:Protobuf parsing failed.",
		"none":          "failed to load 'none': its folder has no .onnx file",
		"two":           "failed to load 'two': its folder has 2 .onnx files: name one of them model.onnx",
		"empty-version": "failed to load 'empty-version': its folder has no .onnx file",
		"settings":      `model.json cannot be read: json: unknown field \"memory\"`,
		"small":         "its file has 2 MiB, and memoryMib of model.json is 1",
		"large":         "it needs 101 MiB of memory, and 100 MiB of 100 MiB are free",
		"range":         "memoryMib of model.json must be 1 to 1048576, not 0",
		"absent":        "failed to load 'absent': the repository has no folder of this name",
	} {
		h.requireCall(t, "POST", "/v2/repository/models/"+model+"/load", "", 400, answer)
		h.requireCall(t, "GET", "/v2/models/"+model+"/ready", "", 404, "unknown model")
	}
	h.requireCall(t, "POST", "/v2/repository/index", "{}", 200, "Protobuf parsing failed")
	h.requireCall(t, "POST", "/v2/repository/index", `{"ready": true}`, 200, "[]")
	h.requireCall(t, "POST", "/v2/repository/index", `{"ready": 1}`, 400, "not the JSON that this call takes")

	// A model whose file was replaced loads.
	h.write(t, "wrong/model.onnx", "content")
	h.load(t, "wrong")
	require.Equal(t, "READY 1", h.states(t)["wrong"])
	h.requireCall(t, "GET", "/metrics", "", 200, `onnxserver_model_loads_total{result="failed"} 9`)
}

func TestServer_ReservesMemoryFromLoadToUnload(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.ModelMemoryMiB = 100 })
	for _, model := range []string{"a", "b"} {
		h.write(t, model+"/model.onnx", "")
		h.write(t, model+"/model.json", `{"memoryMib": 60}`)
	}
	h.load(t, "a")
	h.requireCall(t, "POST", "/v2/repository/models/b/load", "", 400, "it needs 60 MiB of memory, and 40 MiB of 100 MiB are free")
	h.requireCall(t, "POST", "/v2/repository/models/a/unload", "", 200, "")
	h.load(t, "b")
	h.write(t, "b/model.json", `{"memoryMib": 1}`)
	h.load(t, "b")
	large := fmt.Sprintf(`{"inputs": [{"name": "x", "shape": [131073, 2], "datatype": "FP32", "data": [%s0]}]}`, strings.Repeat("0,", 2*131073-1))
	h.requireCall(t, "POST", "/v2/models/b/infer", large, 400, "raise memoryMib in its model.json")
}

func TestServer_ChangesTheVersionInPlace(t *testing.T) {
	h := newHarness(t, nil)
	h.write(t, "speech/silero_vad_v5.onnx", "five")
	h.load(t, "speech")
	require.Equal(t, map[string]string{"speech": "READY 5"}, h.states(t))
	h.write(t, "speech/6/model.onnx", "six")
	h.write(t, "speech/06/model.onnx", "not a version")
	h.requireCall(t, "POST", "/v2/models/speech/infer", pair, 200, "five")
	h.load(t, "speech")
	h.requireCall(t, "POST", "/v2/models/speech/infer", pair, 200, `"model_version":"6"`)
	require.EqualValues(t, 1, h.engine.open.Load())
}

func TestServer_UnloadWaitsForRequests(t *testing.T) {
	h := newHarness(t, nil)
	h.write(t, "slow/model.onnx", "waiting")
	h.load(t, "slow")
	answered := make(chan string, 1)
	go func() {
		status, answer, err := h.try(context.Background(), "POST", "/v2/models/slow/infer", pair)
		answered <- fmt.Sprint(status, err, answer)
	}()
	<-h.engine.entered
	unloaded := make(chan int, 1)
	go func() {
		status, _, _ := h.try(context.Background(), "POST", "/v2/repository/models/slow/unload", "")
		unloaded <- status
	}()
	require.Eventually(t, func() bool { return h.states(t)["slow"] == "UNLOADING 1" }, time.Minute, time.Millisecond)
	h.requireCall(t, "POST", "/v2/models/slow/infer", pair, 404, "unknown model")
	require.Empty(t, unloaded)
	require.EqualValues(t, 1, h.engine.open.Load())
	close(h.engine.gate)
	require.Contains(t, <-answered, "200 <nil>")
	require.Equal(t, 200, <-unloaded)
	require.Zero(t, h.engine.open.Load())
}

func TestServer_LimitsRequests(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Concurrency, c.Queue = 1, 1 })
	h.write(t, "slow/model.onnx", "waiting")
	h.load(t, "slow")
	answered := make(chan int, 2)
	send := func() {
		status, _, _ := h.try(context.Background(), "POST", "/v2/models/slow/infer", pair)
		answered <- status
	}
	go send()
	<-h.engine.entered
	go send()
	require.Eventually(t, func() bool { return h.waiting.Load() == 1 }, time.Minute, time.Millisecond)
	h.requireCall(t, "POST", "/v2/models/slow/infer", pair, 429, "its queue is full")
	close(h.engine.gate)
	require.Equal(t, 200, <-answered)
	require.Equal(t, 200, <-answered)
}

func TestServer_EndsRequestsThatTakeTooLong(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.RequestTimeout = 50 * time.Millisecond })
	h.write(t, "slow/model.onnx", "waiting")
	h.load(t, "slow")
	h.requireCall(t, "POST", "/v2/models/slow/infer", pair, 504, "took longer than the server allows")
}

func TestServer_SpeaksGRPC(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.ModelMemoryMiB = 100 })
	h.write(t, "echo/model.onnx", "content")
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	client := inferenceconnect.NewGRPCInferenceServiceClient(&http.Client{Transport: transport}, h.url, connect.WithGRPC())
	ctx := t.Context()
	input := func(contents *inferencepb.InferTensorContents) *inferencepb.ModelInferRequest {
		return &inferencepb.ModelInferRequest{
			ModelName: "echo", Id: "7",
			Inputs: []*inferencepb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{1, 2}, Contents: contents}},
		}
	}
	_, err := client.ModelInfer(ctx, input(nil))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	_, err = client.RepositoryModelLoad(ctx, &inferencepb.RepositoryModelLoadRequest{ModelName: "absent"})
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	require.ErrorContains(t, err, "no folder of this name")
	_, err = client.RepositoryModelLoad(ctx, &inferencepb.RepositoryModelLoadRequest{ModelName: "../secret"})
	require.ErrorContains(t, err, "is not the name of a folder")
	_, err = client.RepositoryModelLoad(ctx, &inferencepb.RepositoryModelLoadRequest{ModelName: "echo"})
	require.NoError(t, err)
	index, err := client.RepositoryIndex(ctx, &inferencepb.RepositoryIndexRequest{Ready: true})
	require.NoError(t, err)
	require.Len(t, index.Models, 1)
	require.Equal(t, "READY", index.Models[0].State)
	ready, err := client.ModelReady(ctx, &inferencepb.ModelReadyRequest{Name: "echo", Version: "1"})
	require.NoError(t, err)
	require.True(t, ready.Ready)
	metadata, err := client.ModelMetadata(ctx, &inferencepb.ModelMetadataRequest{Name: "echo"})
	require.NoError(t, err)
	require.Equal(t, []int64{-1, 2}, metadata.Inputs[0].Shape)
	server, err := client.ServerMetadata(ctx, &inferencepb.ServerMetadataRequest{})
	require.NoError(t, err)
	require.Equal(t, "onnxserver", server.Name)
	live, err := client.ServerLive(ctx, &inferencepb.ServerLiveRequest{})
	require.NoError(t, err)
	require.True(t, live.Live)

	answer, err := client.ModelInfer(ctx, input(&inferencepb.InferTensorContents{Fp32Contents: []float32{1, 2.5}}))
	require.NoError(t, err)
	require.Equal(t, "7", answer.Id)
	raw := answer.RawOutputContents[0]
	require.Equal(t, float32(2.5), math.Float32frombits(binary.LittleEndian.Uint32(raw[4:])))
	again := input(nil)
	again.RawInputContents = [][]byte{raw}
	second, err := client.ModelInfer(ctx, again)
	require.NoError(t, err)
	require.Equal(t, answer.RawOutputContents, second.RawOutputContents)
	again.Inputs[0].Contents = &inferencepb.InferTensorContents{}
	_, err = client.ModelInfer(ctx, again)
	require.ErrorContains(t, err, "send one of them")
	again.RawInputContents = [][]byte{raw, raw}
	_, err = client.ModelInfer(ctx, again)
	require.ErrorContains(t, err, "raw_input_contents has 2 elements")

	_, err = client.RepositoryModelUnload(ctx, &inferencepb.RepositoryModelUnloadRequest{ModelName: "echo"})
	require.NoError(t, err)
	_, err = client.RepositoryModelUnload(ctx, &inferencepb.RepositoryModelUnloadRequest{ModelName: "echo"})
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
}

func TestReadContents_ChecksTheRange(t *testing.T) {
	data, err := readContents("INT16", &inferencepb.InferTensorContents{IntContents: []int32{-2, 3}})
	require.NoError(t, err)
	require.Equal(t, []byte{0xfe, 0xff, 3, 0}, data)
	_, err = readContents("UINT8", &inferencepb.InferTensorContents{UintContents: []uint32{256}})
	require.ErrorContains(t, err, "256, which is not of type UINT8")
	_, err = readContents("BF16", nil)
	require.ErrorContains(t, err, "not supported")
}

func TestRun_AnswersAcceptedRequestsBeforeItEnds(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := &harness{engine: newFakeEngine(), repository: t.TempDir(), url: "http://" + listener.Addr().String()}
	h.Server, err = New(Config{ModelRepository: h.repository, Engine: h.engine, Listener: listener})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	h.write(t, "slow/model.onnx", "waiting")
	h.load(t, "slow")
	answered := make(chan int, 1)
	go func() {
		status, _, _ := h.try(context.Background(), "POST", "/v2/models/slow/infer", pair)
		answered <- status
	}()
	<-h.engine.entered
	stop()
	require.Eventually(t, h.draining.Load, time.Minute, time.Millisecond)
	require.Empty(t, ended)
	close(h.engine.gate)
	require.Equal(t, 200, <-answered)
	require.NoError(t, <-ended)
	require.Zero(t, h.engine.open.Load())
	http.DefaultClient.CloseIdleConnections()
}

func TestConfig_NamesTheFlag(t *testing.T) {
	require.NoError(t, Config{ModelRepository: "models"}.Validate())
	for flag, cfg := range map[string]Config{
		"--port": {Port: 70000}, "--model-repository": {}, "--model-memory-mib": {ModelMemoryMiB: -1}, "--threads": {Threads: -1},
		"--concurrency": {Concurrency: -1}, "--queue": {Queue: -1}, "--max-body-bytes": {MaxBodyBytes: -1},
		"--request-timeout": {RequestTimeout: -1}, "--drain-timeout": {DrainTimeout: -1}, "--log-format": {LogFormat: "xml"},
	} {
		require.ErrorContains(t, cfg.Validate(), flag)
	}
	_, err := New(Config{ModelRepository: "models"})
	require.ErrorContains(t, err, "the engine is missing")
	var log strings.Builder
	Config{LogFormat: "json"}.NewLogger(&log).Info("hello")
	require.True(t, json.Valid([]byte(log.String())))
}
