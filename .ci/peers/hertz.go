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

func serveHertz(listen string, instances *balancer) error {
	hlog.SetOutput(io.Discard)
	c, err := client.NewClient(
		client.WithDialer(netpoll.NewDialer()), client.WithMaxConnsPerHost(maxConnections), client.WithMaxIdleConnDuration(idleTimeout),
		client.WithResponseBodyStream(true), client.WithNoDefaultUserAgentHeader(true), client.WithDisablePathNormalizing(true),
	)
	if err != nil {
		return err
	}
	h := server.New(
		server.WithHostPorts(listen), server.WithTransport(netpoll.NewTransporter), server.WithIdleTimeout(idleTimeout),
		server.WithDisablePrintRoute(true), server.WithDisableDefaultContentType(true),
	)
	h.Use(func(ctx context.Context, r *app.RequestContext) {
		for _, name := range hopFields {
			r.Request.Header.Del(name)
		}
		from, _, _ := net.SplitHostPort(r.RemoteAddr().String())
		r.Request.Header.Set("X-Forwarded-For", appendClient(r.Request.Header.Peek("X-Forwarded-For"), from))
		host := string(r.Request.Host())
		r.Request.SetHost(instances.nextInstance()) // sets the address to which the request is sent: the Host field stays the client's
		r.Request.Header.SetHost(host)
		if err := c.Do(ctx, &r.Request, &r.Response); err != nil {
			r.String(failedStatus, err.Error())
			return
		}
		for _, name := range hopFields {
			r.Response.Header.Del(name)
		}
		r.Abort()
	})
	return h.Run()
}
