GET /status.json HTTP/1.1
Host: localhost:80
Connection: close

