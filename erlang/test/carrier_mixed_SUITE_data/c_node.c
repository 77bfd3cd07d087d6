/* A C node that lets one Erlang node connect and sends back what it is sent, with its own name. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <ei.h>

/* Arguments: alive name, cookie. Prints its port once it listens. */
int main(int argc, char **argv)
{
    ei_cnode node;
    ErlConnect peer;
    int port = 0, listener, fd;

    if (argc != 3 || ei_init() != 0 || ei_connect_init(&node, argv[1], argv[2], 1) < 0) return 2;
    listener = ei_listen(&node, &port, 5);
    if (listener < 0 || ei_publish(&node, port) < 0) return 3;
    printf("listening\n");
    fflush(stdout);
    fd = ei_accept(&node, listener, &peer);
    if (fd < 0) return 4;
    for (;;) {
        erlang_msg message;
        ei_x_buff in;
        int got;

        ei_x_new(&in);
        got = ei_xreceive_msg(fd, &message, &in);
        if (got == ERL_ERROR) return 0;
        if (got == ERL_MSG && (message.msgtype == ERL_SEND || message.msgtype == ERL_REG_SEND)) {
            int index = 0, version, arity;
            erlang_pid from;
            char text[256];
            ei_x_buff out;

            if (ei_decode_version(in.buff, &index, &version) || ei_decode_tuple_header(in.buff, &index, &arity)
                || arity != 2 || ei_decode_pid(in.buff, &index, &from)
                || ei_decode_atom(in.buff, &index, text)) return 5;
            ei_x_new_with_version(&out);
            ei_x_encode_tuple_header(&out, 2);
            ei_x_encode_atom(&out, ei_thisnodename(&node));
            ei_x_encode_atom(&out, text);
            if (ei_send(fd, &from, out.buff, out.index) < 0) return 6;
            ei_x_free(&out);
        }
        ei_x_free(&in);
    }
}
