package main

import (
	"context"
	"io"
	"net"

	"github.com/cloudwego/hertz/pkg/app"
	"github.com/cloudwego/hertz/pkg/app/client"
	"github.com/cloudwego/hertz/pkg/app/server"
	"github.com/cloudwego/hertz/pkg/common/hlog"
	"github.com/cloudwego/hertz/pkg/network/netpoll"
)

func serveHertz(at string, to *balancer) error {
	hlog.SetOutput(io.Discard)
	c, err := client.NewClient(
		client.WithDialer(netpoll.NewDialer()), client.WithMaxConnsPerHost(connections), client.WithMaxIdleConnDuration(idle),
		client.WithResponseBodyStream(true), client.WithNoDefaultUserAgentHeader(true), client.WithDisablePathNormalizing(true),
	)
	if err != nil {
		return err
	}
	h := server.New(
		server.WithHostPorts(at), server.WithTransport(netpoll.NewTransporter), server.WithIdleTimeout(idle),
		server.WithDisablePrintRoute(true), server.WithDisableDefaultContentType(true),
	)
	h.Use(func(ctx context.Context, r *app.RequestContext) {
		for _, name := range hop {
			r.Request.Header.Del(name)
		}
		from, _, _ := net.SplitHostPort(r.RemoteAddr().String())
		r.Request.Header.Set("X-Forwarded-For", forwarded(r.Request.Header.Peek("X-Forwarded-For"), from))
		host := string(r.Request.Host())
		r.Request.SetHost(to.next()) // which is where it goes; its Host stays the client's
		r.Request.Header.SetHost(host)
		if err := c.Do(ctx, &r.Request, &r.Response); err != nil {
			r.String(failedStatus, err.Error())
			return
		}
		for _, name := range hop {
			r.Response.Header.Del(name)
		}
		r.Abort()
	})
	return h.Run()
}
